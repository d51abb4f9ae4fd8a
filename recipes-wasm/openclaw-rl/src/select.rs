//! Which samples make a step: the first `batch_size` turns whose next state is known. Last turns of open sessions stay
//! in the pool; what can never be judged is retired with a reason.

extern crate alloc;

use alloc::collections::BTreeSet;

use reef_recipe::prelude::*;

use crate::live;
use crate::settings::{BATCH_SIZE, SESSION_TTL_S};

/// Takes the first turns that can be judged, or waits for them.
pub(crate) fn select(ctx: &Context, pool: &Pool) -> Result<Selection> {
    let mut sessions = live::open_sessions()?;
    sessions.expire(ctx.now_ms, SESSION_TTL_S.get()? * 1e3);
    let open: BTreeSet<&str> = sessions.open().iter().map(|session| session.receipt.as_str()).collect();
    let completed: BTreeSet<String> = live::completed()?.into_iter().collect();
    let (receipts, references, lags) = (pool.record_ids()?, pool.reference_counts()?, pool.lags()?);
    let (mut usable, mut retired) = (Vec::new(), Vec::new());
    for (((&sample, receipt), references), lag) in pool.handles().iter().zip(&receipts).zip(references).zip(lags) {
        let reason = if references != 1 {
            format!("its report references {references} records; openclaw-rl learns from single turns")
        } else if lag > ctx.max_staleness {
            format!("sampled {lag} releases ago, max_staleness is {}", ctx.max_staleness)
        } else if completed.contains(receipt) {
            usable.push(sample);
            continue;
        } else if open.contains(receipt.as_str()) {
            continue;
        } else {
            "nothing is known to have come after it: its session ended, or went on from another answer".to_owned()
        };
        retired.push(Retirement::new(sample, reason));
    }
    Ok(Pool::from(usable).first(BATCH_SIZE.get()?).retire(retired))
}
