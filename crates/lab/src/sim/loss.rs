//! A loss in the cluster scenario: nodes go for good while everything else goes on, and an operator has the others go on without them.
//!
//! What is lost then is what nobody who is left holds by the layouts, and nothing else: to the oracle it is as if somebody had trimmed it.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use ithaca_env::Env;
use ithaca_env::sim::{Dice, Domain};
use ithaca_log::client::{Client, GiveUpError, GivingUp, give_up};
use ithaca_log::layout::Layout;
use ithaca_log::limits;
use ithaca_log::pos::{Addr, LogPos, NodeId};

use super::history::{Moment, Trim};
use super::operator;
use super::workload::Shared;

/// One attempt to go on may take so long.
const ATTEMPT: Duration = Duration::from_secs(5);
/// The wait before the next one.
const AGAIN: Duration = Duration::from_millis(100);
/// How often it is looked for what was lost.
const LOOKS_MAX: u32 = 50;

/// Which nodes go, when, and how long it takes an operator to see it.
pub struct Loss {
    /// Who goes: some of those that the cluster was formed of, and not all.
    pub gone: Vec<NodeId>,
    /// When, at the earliest.
    pub at: Duration,
    /// The time until somebody does something about it.
    pub wait: Duration,
}

impl Loss {
    /// Of a cluster that was formed of `count` nodes, within `horizon`.
    pub fn draw(dice: Dice, count: u64, horizon: Duration) -> Self {
        let below = |number, bound| dice.below(Domain::User(4), 0, number, bound);
        let time = |number| Duration::from_nanos(below(number, horizon.as_nanos() as u64));
        let (at, wait) = (time(0) / 2, time(1));
        let mut gone: Vec<NodeId> = (1..=count).map(NodeId).collect();
        for number in 0..1 + below(2, count.max(2) - 1) {
            gone.remove(below(3 + number, gone.len() as u64) as usize);
        }
        Self { gone, at, wait }
    }
}

/// What became of it.
pub enum Gone {
    /// The others go on without them, and nodes were added in their place.
    GivenUp {
        /// Those nodes.
        added: Vec<NodeId>,
    },
    /// The others can do that by themselves, or not at all.
    Missed,
}

/// Has the others go on, and adds nodes. An error says what should have worked and did not.
pub async fn go_on(
    env: Env,
    shared: Rc<Shared>,
    loss: Loss,
    spare: Vec<(NodeId, SocketAddr)>,
) -> Result<Gone, String> {
    env.sleep(loss.wait).await;
    let start = shared.history.now();
    let (endpoints, planted) = (shared.addrs.clone(), shared.planted);
    let giving = GivingUp { endpoints, gone: loss.gone, timeout: ATTEMPT, planted };
    loop {
        match give_up(&env, &giving).await {
            Ok(_) => break,
            Err(GiveUpError::NotNeeded | GiveUpError::Layout(_)) => return Ok(Gone::Missed),
            Err(error @ (GiveUpError::NoMember { .. } | GiveUpError::There { .. })) => {
                return Err(format!("giving up {:?}: {error}", giving.gone));
            }
            Err(_) => env.sleep(AGAIN).await,
        }
    }
    let client = shared.connect(&env, 0).await;
    let [after, before] = layouts_of_loss(&env, &client).await?;
    note(&shared, &before, &after, &giving.gone, start);
    let mut added = Vec::new();
    for (node, addr) in spare {
        operator::add(&env, &client, node, addr).await?;
        added.push(node);
    }
    Ok(Gone::GivenUp { added })
}

/// The layout after a loss and the one before it, as those who decide layouts remember.
async fn layouts_of_loss(env: &Env, client: &Client) -> Result<[Rc<Layout>; 2], String> {
    for _ in 0..LOOKS_MAX {
        // Where answers get lost some is not told.
        let layouts = client.layouts().await.unwrap_or_default();
        if let Some([after, before]) = layouts.windows(2).find(|two| !two[1].lost_by(&two[0]).is_empty()) {
            return Ok([after, before].map(Rc::clone));
        }
        env.sleep(AGAIN).await;
    }
    Err("after a loss nobody knows the layout before it".to_owned())
}

/// Notes what is lost: what only `gone` have by the layout before, and everything from what is left up to where the log goes on.
fn note(shared: &Shared, before: &Layout, after: &Layout, gone: &[NodeId], start: Moment) {
    let found = LogPos(after.tail().0.saturating_sub(limits::FILL_AHEAD_MAX_COUNT));
    let mut trims = shared.history.trims.borrow_mut();
    let mut lose = |range| trims.push(Trim { range, start, end: None });
    lose(found.0..after.tail().0);
    let is_lost = |replicas: &[NodeId]| replicas.iter().all(|node| gone.contains(node));
    for piece in before.pieces(LogPos(0), found).into_iter().filter(|piece| is_lost(piece.replicas)) {
        for addr in piece.addrs.numbers() {
            let pos = piece.position(Addr(addr)).0;
            lose(pos..pos + 1);
        }
    }
}
