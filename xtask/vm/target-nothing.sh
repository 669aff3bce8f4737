# No target: a guest that is only a host, or does not even that.

target_start() { true; }
target_ensure() { true; }
target_log() { true; }
target_sizes() { true; }
target_at_rest() { true; }
