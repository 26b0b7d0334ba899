//! Groups of a batch: what is asked for, and what came of it.
//!
//! Appends in a row to the same streams, without a condition, are one group. Each with a condition is a group of its own, because it
//! may be refused alone: then it is told, the others keep their order and follow each other, and their request numbers are given
//! anew, without a gap. Groups that follow each other in the same streams are one again in the meta.

use super::View;
use super::append::{Aim, Batch, Queued};
use super::error::{ClientError, Phase};
use super::write::Earlier;
use super::{CallError, limits};
use crate::entry::{GROUP_HEAD_BYTES, PLACE_BYTES, StreamGroup};
use crate::wire::{Grant, GroupGrant, Kind, Token, TokenGroup};

/// What a batch takes of the limits of a request for positions and of a meta.
#[derive(Default)]
pub(super) struct Room {
    meta_bytes: usize,
    groups: usize,
    keys: usize,
}

impl Room {
    /// Takes what one more append needs, which comes behind `before`. Whether it fits.
    pub(super) fn take(&mut self, before: Option<&Aim>, aim: Option<&Aim>) -> bool {
        let is_same = self.groups > 0 && streams(before) == streams(aim);
        if !is_same {
            self.meta_bytes += GROUP_HEAD_BYTES + streams(aim).len() * PLACE_BYTES;
        }
        if !is_same || has_condition(before) || has_condition(aim) {
            self.groups += 1;
        }
        if let Some(condition) = aim.and_then(|aim| aim.condition.as_ref()) {
            self.keys += condition.reads.len() + condition.writes.len();
        }
        self.meta_bytes <= limits::META_ROOM_BYTES
            && self.groups <= limits::TOKEN_GROUPS_MAX_COUNT
            && self.keys <= limits::TOKEN_KEYS_MAX_COUNT
    }
}

fn streams(aim: Option<&Aim>) -> &[crate::pos::StreamId] {
    aim.map_or(&[], |aim| &aim.streams)
}

fn has_condition(aim: Option<&Aim>) -> bool {
    aim.is_some_and(|aim| aim.condition.is_some())
}

/// What is asked for a batch.
pub(super) fn ask_for(entries: &[Queued]) -> Token {
    let mut groups: Vec<TokenGroup> = Vec::new();
    for queued in entries {
        let aim = queued.aim.as_deref();
        match groups.last_mut() {
            Some(last) if last.condition.is_none() && !has_condition(aim) && last.streams == streams(aim) => {
                last.count += 1;
            }
            _ => {
                let condition = aim.and_then(|aim| aim.condition.clone());
                groups.push(TokenGroup { count: 1, streams: streams(aim).to_vec(), condition });
            }
        }
    }
    Token { groups }
}

/// Whether a grant answers what was asked.
pub(super) fn is_answer(token: &Token, grant: &Grant) -> bool {
    let answers = |(asked, got): (&TokenGroup, &GroupGrant)| match got {
        GroupGrant::Granted { count, places } => {
            let streams = places.iter().map(|place| place.stream);
            *count == asked.count && streams.eq(asked.streams.iter().copied())
        }
        GroupGrant::Conflict { .. } | GroupGrant::TooOld { .. } => asked.condition.is_some(),
    };
    token.groups.len() == grant.groups.len() && token.groups.iter().zip(&grant.groups).all(answers)
}

impl Batch {
    /// Writes what was granted positions, in the epoch of `view`, and tells the rest why not.
    pub(super) async fn write_granted(mut self, view: &View, grant: Grant) {
        if !is_answer(&ask_for(&self.entries), &grant) {
            let error = CallError::Mismatch { asked: Kind::Token, answered: Kind::Grant };
            let error = self.failed(view, Phase::Token, error);
            return self.fail_all(&error);
        }
        let is_plain = self.entries.iter().all(|queued| queued.aim.is_none());
        let asked = self.entries.len();
        let first = grant.first;
        let mut groups: Vec<StreamGroup> = Vec::new();
        let (mut granted, mut entries) = (Vec::with_capacity(asked), self.entries.drain(..));
        for group in grant.groups {
            let refusal = match group {
                GroupGrant::Granted { count, places } => {
                    granted.extend(entries.by_ref().take(count as usize));
                    add_group(&mut groups, StreamGroup { count, places });
                    continue;
                }
                GroupGrant::Conflict { key, pos } => ClientError::Conflict { key, pos },
                GroupGrant::TooOld { low_water } => ClientError::TooOld { low_water },
            };
            // Every group that may be refused is one append.
            let queued = entries.next().expect("the grant answers what was asked");
            self.inner.appender.finish(queued, Err(refusal));
        }
        drop(entries);
        if granted.len() < asked {
            self.inner.appender.number(&mut granted);
        }
        self.entries = granted;
        if !self.entries.is_empty() {
            let groups = if is_plain { Vec::new() } else { groups };
            self.write(view, first, groups, Earlier::Never).await;
        }
    }
}

/// Adds a group behind the others, as a part of the last one if it goes on in the same streams.
fn add_group(groups: &mut Vec<StreamGroup>, group: StreamGroup) {
    if let Some(last) = groups.last_mut()
        && last.places.len() == group.places.len()
        && last.places.iter().zip(&group.places).all(|(one, other)| {
            one.stream == other.stream && one.position.0 + u64::from(last.count) == other.position.0
        })
    {
        last.count += group.count;
        return;
    }
    groups.push(group);
}
