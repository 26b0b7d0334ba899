//! Reads a whole log and holds every position against the ledger.

use std::cell::RefCell;

use ithaca_log::client::{Client, ClientError, Entry};
use ithaca_log::pos::LogPos;

use super::ledger::{Ledger, Violation};

/// Positions below the trimmed prefix that are looked at too: they stay trimmed.
const BELOW_PREFIX: u64 = 100;

/// What an audit found.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Audit {
    /// The end of the log.
    pub tail: u64,
    /// Positions that were read.
    pub positions: u64,
    /// Positions that were refused as damaged.
    pub damaged: u64,
}

/// What to do with a position that the log says is damaged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDamage {
    /// Nothing may be damaged: it is lost.
    Lost,
    /// Count it and go on: refusing is all that can be asked.
    Count,
}

/// Reads every position from the trimmed prefix on. No load may run meanwhile, since a reader fills holes. Errors: the
/// first call that fails for another reason than damage.
pub async fn audit(
    client: &Client,
    ledger: &RefCell<Ledger>,
    on_damage: OnDamage,
) -> Result<Audit, ClientError> {
    let mut found = Audit { tail: tail(client, ledger).await?, ..Audit::default() };
    let mut next = ledger.borrow().prefix_done().saturating_sub(BELOW_PREFIX);
    while next < found.tail {
        match client.read_range(LogPos(next), LogPos(found.tail)).await {
            Ok(entries) if entries.is_empty() => {
                // What an epoch has granted and nobody wrote ends with it, and the log ends lower.
                found.tail = tail(client, ledger).await?;
                if next < found.tail {
                    let what = format!("a read from {next} to {} gave nothing", found.tail);
                    ledger.borrow_mut().violated(Violation::Lost, what);
                }
                break;
            }
            Ok(entries) => next = compare(ledger, &entries, next, &mut found),
            Err(ClientError::Damaged { pos }) => {
                next = one_by_one(client, ledger, next, pos.0, on_damage, &mut found).await?;
            }
            Err(error) => return Err(error),
        }
    }
    ledger.borrow_mut().set_audited(found.tail);
    Ok(found)
}

/// Where the log ends, held against the ledger.
async fn tail(client: &Client, ledger: &RefCell<Ledger>) -> Result<u64, ClientError> {
    let tail = client.check().await?.tail.0;
    ledger.borrow_mut().tail_is(tail);
    Ok(tail)
}

/// Compares entries that were read from `next` on; returns where to go on.
fn compare(ledger: &RefCell<Ledger>, entries: &[Entry], mut next: u64, found: &mut Audit) -> u64 {
    let mut ledger = ledger.borrow_mut();
    for entry in entries {
        if entry.pos.0 != next {
            let what = format!("a read from {next} on left it out and went on at {}", entry.pos);
            ledger.violated(Violation::Lost, what);
        }
        let was_trimmed = ledger.is_trimmed(entry.pos.0);
        ledger.observed(entry.pos.0, entry.kind, &entry.data, was_trimmed);
        next = entry.pos.0 + 1;
        found.positions += 1;
    }
    next
}

/// Reads the positions from `next` to `damaged` alone each, since a range with a damaged entry is refused whole. Returns
/// where to go on.
async fn one_by_one(
    client: &Client,
    ledger: &RefCell<Ledger>,
    next: u64,
    damaged: u64,
    on_damage: OnDamage,
    found: &mut Audit,
) -> Result<u64, ClientError> {
    for pos in next..=damaged.max(next) {
        match client.read(LogPos(pos)).await {
            Ok(entry) => drop(compare(ledger, &[entry], pos, found)),
            Err(ClientError::Damaged { .. }) => {
                found.damaged += 1;
                found.positions += 1;
                if on_damage == OnDamage::Lost {
                    let what = format!("position {pos} is damaged");
                    ledger.borrow_mut().violated(Violation::Lost, what);
                }
            }
            // A hole before the damage, which a read of one position does not fill.
            Err(ClientError::Unwritten { .. }) => {
                let kind = client.fill(LogPos(pos)).await?;
                ledger.borrow_mut().filled(pos, kind);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(damaged.max(next) + 1)
}
