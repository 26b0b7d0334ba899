//! What a node that was removed still has to do: the others may not know yet that they go on without it.
//!
//! ```text
//!   epoch e, acceptors 1    ── node 1 accepts e + 1, without itself: decided ──► it ends ──► nobody knows e + 1, nor can decide another
//!                                                                           └──► it tells the acceptors of e + 1 ──► it ends
//! ```

use std::time::Duration;

use ithaca_env::Env;

use super::member::TELL_PATIENCE;
use crate::layout::Layout;
use crate::server::decide::learn;
use crate::server::peers::Peers;

/// The wait before they are told again.
const TELL_AGAIN: Duration = Duration::from_millis(100);

/// Tells those who decide the next layout of `layout`, again and again until most of them have it on stable storage. From then on they do not need
/// this node to learn of it.
pub(super) async fn pass_on(env: &Env, layout: &Layout) {
    let acceptors = Peers::new(env, layout.cluster).acceptors(layout);
    while 2 * learn(&acceptors, layout, env.now() + TELL_PATIENCE).await <= acceptors.len() {
        env.sleep(TELL_AGAIN).await;
    }
}
