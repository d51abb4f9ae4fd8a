//! The end of the server, as running exchanges hear of it.
//! The host tells it after the time for draining; whoever hears it writes the record of what was said, and ends.

use tokio::sync::watch;

/// True from the moment that exchanges have to end.
#[derive(Debug, Clone)]
pub struct Ending(pub watch::Receiver<bool>);

impl Ending {
    /// Waits until exchanges have to end; for ever if nobody is left to say so.
    pub async fn come(&mut self) {
        if self.0.wait_for(|ending| *ending).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn the_end_comes_when_it_is_told_and_only_then() {
        let (tell, told) = watch::channel(false);
        let mut ending = Ending(told);
        assert!(ending.come().now_or_never().is_none());
        tell.send_replace(true);
        assert!(ending.come().now_or_never().is_some());
        let (gone, untold) = watch::channel(false);
        drop(gone);
        assert!(Ending(untold).come().now_or_never().is_none());
    }
}
