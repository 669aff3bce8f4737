//! Compares the bindings with the C headers: sizes, alignments, offsets, numbers and signatures.
//!
//! The test generates, compiles and runs a small C program; it needs `cc` and the headers of
//! rdma-core.

use std::fmt::Write as _;
use std::mem::{align_of, offset_of, size_of};
use std::path::Path;
use std::process::Command;

use nvmeof_verbs::ffi::functions::{Cm, Signature, Verbs};
use nvmeof_verbs::ffi::{cma::*, verbs::*};

/// A number on both sides: C's expression and our value.
struct Fact {
    c: String,
    ours: i128,
}

fn fact(c: String, ours: impl TryInto<i128>) -> Fact {
    Fact { c, ours: ours.try_into().ok().expect("a number") }
}

/// Facts of structures. `whole` are complete in Rust; `start` are the beginning of longer ones.
macro_rules! structures {
    ( $list:ident; $( $extent:ident $name:ident { $( $field:ident $( . $inner:ident )* ),* $(,)? } )* ) => {
        $(
            structures!(@$extent $list $name);
            $(
                let field = stringify!($field $( . $inner )*).replace(' ', "");
                // A Rust field cannot be named `type`.
                let field = field.trim_end_matches('_');
                $list.push(fact(
                    format!("offsetof(struct {}, {field})", stringify!($name)),
                    offset_of!($name, $field $( . $inner )*),
                ));
            )*
        )*
    };
    (@whole $list:ident $name:ident) => {
        $list.push(fact(format!("sizeof(struct {})", stringify!($name)), size_of::<$name>()));
        $list.push(fact(format!("_Alignof(struct {})", stringify!($name)), align_of::<$name>()));
    };
    (@start $list:ident $name:ident) => {};
}

macro_rules! numbers {
    ( $list:ident; $( $name:ident ),* $(,)? ) => {
        $( $list.push(fact(stringify!($name).to_owned(), $name)); )*
    };
}

fn facts() -> Vec<Fact> {
    let mut list = Vec::new();
    verbs_structures(&mut list);
    attributes(&mut list);
    cm_structures(&mut list);
    numbers(&mut list);
    list.push(fact("sizeof(union ibv_gid)".into(), size_of::<ibv_gid>()));
    list.push(fact("_Alignof(union ibv_gid)".into(), align_of::<ibv_gid>()));
    list
}

fn verbs_structures(list: &mut Vec<Fact>) {
    structures! { list;
        start ibv_device { _ops, node_type, transport_type }
        whole ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        whole ibv_context_ops {
            alloc_mw, bind_mw, dealloc_mw, poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
            _compat_query_device, _compat_query_port, _compat_async_event,
        }
        whole ibv_pd { context, handle }
        whole ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        whole ibv_mw { context, pd, rkey, handle, type_ }
        whole ibv_mw_bind_info { mr, addr, length, mw_access_flags }
        whole ibv_comp_channel { context, fd, refcnt }
        start ibv_cq { context, channel, cq_context, handle, cqe }
        start ibv_srq { context, srq_context, pd, handle }
        start ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type,
        }
        whole ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, invalidated_rkey, qp_num, src_qp, wc_flags,
            pkey_index, slid, sl, dlid_path_bits,
        }
        whole ibv_sge { addr, length, lkey }
        whole ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, invalidate_rkey, wr,
            wr.rdma, wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.compare_add, wr.atomic.swap,
            wr.atomic.rkey, qp_type.xrc.remote_srqn, bind_mw, bind_mw.mw, bind_mw.rkey,
            bind_mw.bind_info,
        }
        whole ibv_recv_wr { wr_id, next, sg_list, num_sge }
        whole ibv_async_event { element, element.qp, element.cq, element.srq, event_type }
    }
}

fn attributes(list: &mut Vec<Fact>) {
    structures! { list;
        whole ibv_device_attr {
            fw_ver, node_guid, vendor_id, max_qp_wr, device_cap_flags, max_sge, max_sge_rd, max_cq,
            max_cqe, max_qp_rd_atom, max_res_rd_atom, max_qp_init_rd_atom, atomic_cap, max_mw, max_srq,
            max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        whole ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, pkey_tbl_len, lid,
            phys_state, link_layer, flags, port_cap_flags2,
        }
        whole ibv_qp_cap {
            max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data,
        }
        whole ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        whole ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        whole ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        whole ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num,
            qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index,
            en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer,
            port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
        }
        whole ibv_srq_attr { max_wr, max_sge, srq_limit }
        whole ibv_srq_init_attr { srq_context, attr }
    }
}

fn cm_structures(list: &mut Vec<Fact>) {
    structures! { list;
        whole rdma_event_channel { fd }
        whole rdma_ib_addr { sgid, dgid, pkey }
        whole rdma_addr { src_storage, dst_storage, addr }
        whole rdma_route { addr, path_rec, num_paths }
        whole rdma_cm_id {
            verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
            recv_cq_channel, recv_cq, srq, pd, qp_type,
        }
        whole rdma_conn_param {
            private_data, private_data_len, responder_resources, initiator_depth, flow_control,
            retry_count, rnr_retry_count, srq, qp_num,
        }
        whole rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
        whole rdma_cm_event { id, listen_id, event, status, param, param.conn, param.ud }
    }
}

fn numbers(list: &mut Vec<Fact>) {
    numbers! { list;
        IBV_TRANSPORT_IB, IBV_TRANSPORT_IWARP,
        IBV_DEVICE_MEM_WINDOW_TYPE_2A, IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_PORT_ACTIVE,
        IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_MW_BIND,
        IBV_MW_TYPE_2, IBV_WC_SUCCESS, IBV_WC_WR_FLUSH_ERR, IBV_WC_REM_INV_REQ_ERR,
        IBV_WC_REM_ACCESS_ERR, IBV_WC_REM_OP_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
        IBV_WC_RESP_TIMEOUT_ERR, IBV_WC_RECV, IBV_WC_WITH_IMM, IBV_WC_IP_CSUM_OK, IBV_WC_WITH_INV,
        IBV_WR_RDMA_WRITE, IBV_WR_SEND, IBV_WR_RDMA_READ, IBV_WR_BIND_MW, IBV_WR_SEND_WITH_INV,
        IBV_SEND_FENCE, IBV_SEND_SIGNALED, IBV_SEND_INLINE, IBV_QPT_RC, IBV_QPS_INIT, IBV_QPS_RTR,
        IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, IBV_QP_AV, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY, IBV_QP_MAX_QP_RD_ATOMIC,
        IBV_QP_MIN_RNR_TIMER, IBV_QP_MAX_DEST_RD_ATOMIC,
        IBV_EVENT_CQ_ERR, IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR,
        IBV_EVENT_COMM_EST, IBV_EVENT_SQ_DRAINED, IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR,
        IBV_EVENT_DEVICE_FATAL, IBV_EVENT_SRQ_ERR, IBV_EVENT_SRQ_LIMIT_REACHED,
        IBV_EVENT_QP_LAST_WQE_REACHED,
        RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED,
        RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
        RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
        RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL,
        RDMA_CM_EVENT_ADDR_CHANGE, RDMA_CM_EVENT_TIMEWAIT_EXIT,
        RDMA_PS_TCP, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH,
        RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY,
        RDMA_OPTION_ID_ACK_TIMEOUT,
    }
}

/// Returns the C spelling of a type.
fn c_type(rust: &str, function: &str) -> String {
    if let Some(pointed) = rust.strip_prefix("*mut ") {
        return format!("{}*", c_type(pointed, function));
    }
    if let Some(pointed) = rust.strip_prefix("*const ") {
        return format!("const {}*", c_type(pointed, function));
    }
    let plain = match rust {
        "" | "c_void" => "void",
        "c_int" => "int",
        "c_uint" => "unsigned int",
        "c_char" => "char",
        "u8" => "uint8_t",
        // Of the same size, but a different type in C.
        "u64" if function == "ibv_get_device_guid" => "__be64",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "libc::sockaddr" => "struct sockaddr",
        "ibv_gid" => "union ibv_gid",
        // The library's own function writes only the old part of the structure.
        "ibv_port_attr" if function == "ibv_query_port" => "struct _compat_ibv_port_attr",
        other => return format!("struct {other}"),
    };
    plain.to_owned()
}

/// Returns an assignment that compiles only if the header declares the function as we do.
fn c_check(signature: &Signature) -> String {
    let Signature { name, arguments, returns } = *signature;
    let arguments: Vec<String> = arguments.iter().map(|rust| c_type(rust, name)).collect();
    let arguments = if arguments.is_empty() { "void".to_owned() } else { arguments.join(", ") };
    format!("{} (*check_{name})({arguments}) = {name};\n", c_type(returns, name))
}

fn c_program(facts: &[Fact]) -> String {
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n\
         #include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n",
    );
    text.push_str("int main(void) {\n");
    for fact in facts {
        writeln!(text, "printf(\"%lld\\n\", (long long)({}));", fact.c).expect("a string grows");
    }
    text.push_str("return 0;\n}\n");
    text
}

fn require_headers() {
    for header in ["infiniband/verbs.h", "rdma/rdma_cma.h"] {
        assert!(
            Path::new("/usr/include").join(header).is_file(),
            "/usr/include/{header} is missing: apt-get install libibverbs-dev librdmacm-dev"
        );
    }
}

fn compile(source: &str, name: &str, arguments: &[&str]) -> std::path::PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (file, output) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&file, source).expect("the source is written");
    let status = Command::new("cc")
        .args(["-std=gnu11", "-Werror"])
        .args(arguments)
        .arg(&file)
        .arg("-o")
        .arg(&output)
        .status()
        .expect("cc runs (apt-get install build-essential)");
    assert!(status.success(), "cc takes {}", file.display());
    output
}

#[test]
fn sizes_offsets_and_numbers_are_those_of_c() {
    require_headers();
    let facts = facts();
    let program = compile(&c_program(&facts), "layout-facts", &[]);
    let output = Command::new(program).output().expect("the program runs");
    let text = String::from_utf8(output.stdout).expect("numbers");
    let theirs: Vec<i128> = text.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(theirs.len(), facts.len());
    let wrong: Vec<String> = facts
        .iter()
        .zip(theirs)
        .filter(|(fact, theirs)| fact.ours != *theirs)
        .map(|(fact, theirs)| format!("{}: C says {theirs}, we say {}", fact.c, fact.ours))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn signatures_are_those_of_c() {
    require_headers();
    let mut text = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n\
         #include <infiniband/verbs.h>\n#include <rdma/rdma_cma.h>\n",
    );
    for signature in Verbs::SIGNATURES.iter().chain(Cm::SIGNATURES) {
        text.push_str(&c_check(signature));
    }
    compile(&text, "layout-signatures.o", &["-c"]);
}

#[test]
fn a_wrong_offset_would_be_seen() {
    require_headers();
    let wrong = Fact { c: "offsetof(struct ibv_wc, qp_num)".to_owned(), ours: 0 };
    let program = compile(&c_program(std::slice::from_ref(&wrong)), "layout-wrong", &[]);
    let output = Command::new(program).output().expect("the program runs");
    let theirs: i128 = String::from_utf8_lossy(&output.stdout).trim().parse().expect("a number");
    assert_ne!(theirs, wrong.ours);
}
