//! Looks, when a run is over, whether any node still holds what no stripe of the layout has: trims must reach that too.

use std::time::Duration;

use ithaca_env::Env;
use ithaca_log::client::{Client, ClientError};
use ithaca_log::layout::{Layout, NodeState};
use ithaca_log::pos::Addr;
use ithaca_log::wire::{Read, RunState, Runs};

use super::replicas::{failed, open};

/// Nodes have given it up after so many looks.
const LOOKS_MAX: u32 = 100;
/// The wait before the next look.
const AGAIN: Duration = Duration::from_millis(100);
/// A unit answers within this.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a node still holds after a while that nobody needs, in words; `None` if there is nothing.
pub async fn held(env: &Env, client: &Client) -> Result<Option<String>, ClientError> {
    let mut looked = 0;
    loop {
        looked += 1;
        let layout = client.layout().await?;
        let found = held_in(env, &layout).await;
        match found {
            Ok(None) => return Ok(None),
            found if looked >= LOOKS_MAX => return found,
            _ => env.sleep(AGAIN).await,
        }
    }
}

async fn held_in(env: &Env, layout: &Layout) -> Result<Option<String>, ClientError> {
    let unnamed = layout.unnamed();
    for node in layout.nodes.iter().filter(|node| node.state != NodeState::Out) {
        let connection = open(env, layout, node.id).await?;
        for range in &unnamed {
            let mut next = range.start;
            while next < range.end {
                let rest = (next.0..range.end.0).into();
                let read = Read { limit_bytes: 1 << 20, committed: false, ranges: vec![rest] };
                let answer = connection.call::<_, Runs>(env, layout.epoch, &read, env.now() + PATIENCE).await;
                let (runs, _, _) = answer.map_err(|error| failed(layout, node.id, error))?;
                for run in &runs.runs {
                    if !matches!(run.state, RunState::Trimmed | RunState::Unwritten) {
                        let what =
                            format!("node {} holds {} of no stripe: {:?}", node.id, run.addr, run.state);
                        return Ok(Some(what));
                    }
                    next = Addr(run.addr.0 + run.count);
                }
            }
        }
    }
    Ok(None)
}
