//! The pool of instances: off by the operator's word, and off where the machine has no room for it.

use reef_sandbox::{Sandbox, SandboxConfig};

use crate::guest::*;
use crate::heard;

/// KiB of address space: enough for a few memories of 4 GiB each, not for a pool of hundreds.
const ADDRESS_SPACE_KIB: u64 = 64 << 20;

/// A sandbox with `pooling: false` → no pool in the gauges, and calls as ever, 5 s.
#[tokio::test]
async fn an_operator_can_do_without_a_pool() {
    let sandbox = Sandbox::new(SandboxConfig { pooling: false, ..small() }).expect("starts");
    let gauges = sandbox.gauges();
    assert!(!gauges.pooling && !sandbox.pooling() && gauges.pool_memories == 0);
    still_works(&sandbox).await;
}

/// A start without the address space for a pool → a warning, `pooling` false in the gauges, and calls as ever, 60 s.
#[tokio::test]
async fn a_machine_without_room_for_a_pool_is_told_and_does_without() {
    let limited = format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" \"$@\"");
    if !alone_in("pool::a_machine_without_room_for_a_pool_is_told_and_does_without", &limited) {
        return;
    }
    heard::listen();
    let sandbox = Sandbox::new(small()).expect("starts");
    assert!(!sandbox.gauges().pooling && !sandbox.pooling());
    let lines = heard::lines("no pool of instances");
    assert!(lines.len() == 1 && lines[0].starts_with("WARN"), "{lines:?}");
    still_works(&sandbox).await;
}
