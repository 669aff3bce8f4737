//! `open_enum!`: a number with names for the known values.

/// Defines a transparent newtype with named constants, `name()`, and a `Display`. It prints the
/// name, or the number if the value has no name.
macro_rules! open_enum {
    (
        $(#[$meta:meta])*
        pub struct $name:ident($field:vis $int:ty) {
            $($(#[doc = $doc:literal])* $const:ident = $value:literal => $text:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
        )]
        #[repr(transparent)]
        pub struct $name($field $int);

        impl $name {
            $(
                #[doc = concat!($text, " (", stringify!($value), ").")]
                $(#[doc = $doc])*
                pub const $const: Self = Self($value);
            )*

            /// Name of the value in the specification, if this crate defines it.
            #[must_use]
            pub const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some($text),)*
                    _ => None,
                }
            }
        }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{:#04x}", self.0),
                }
            }
        }

        impl From<$int> for $name {
            #[inline]
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    };
}

pub(crate) use open_enum;

/// Implements `Default` as all zeroes, for layouts with arrays too long for the derive.
macro_rules! zero_default {
    ($($name:ty),* $(,)?) => {
        $(
            impl Default for $name {
                fn default() -> Self {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*
    };
}

pub(crate) use zero_default;
