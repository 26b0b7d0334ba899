//! Groups of a batch: what is asked for, and what came of it.
//!
//! Appends in a row to the same streams, without a condition, are one group; so are those in a row to one stream that read nothing and say
//! what they write, because none of them can be refused for what it says. Each of the others is a group of its own, because it
//! may be refused alone: then it is told, and the others keep their order and follow each other. Groups that follow each other in the
//! same streams are one again in the meta.

use super::View;
use super::append::{Aim, Batch, Placed, Queued};
use super::error::{ClientError, Phase};
use super::write::Earlier;
use super::{CallError, limits};
use crate::entry::{GROUP_HEAD_BYTES, PLACE_BYTES, StreamGroup};
use crate::pos::{LogPos, StreamId};
use crate::stream::Condition;
use crate::wire::{Grant, GroupGrant, Kind, Token, TokenGroup};

/// What a batch takes of the limits of a request for positions and of a meta.
#[derive(Default)]
pub(super) struct Room {
    meta_bytes: usize,
    groups: usize,
    keys: usize,
    /// Parts that the last group writes, if it is one that others may join.
    joined: usize,
}

impl Room {
    /// Takes what one more append needs, which comes behind `before`. Whether it fits.
    pub(super) fn take(&mut self, before: Option<&Aim>, aim: Option<&Aim>) -> bool {
        let is_same = self.groups > 0 && streams(before) == streams(aim);
        if !is_same {
            self.meta_bytes += GROUP_HEAD_BYTES + streams(aim).len() * PLACE_BYTES;
        }
        let keys = condition(aim).map_or(0, |condition| condition.reads.len() + condition.writes.len());
        if is_same && joins(before, aim, self.joined) {
            self.joined += keys;
        } else {
            self.groups += 1;
            self.joined = keys;
        }
        self.keys += keys;
        self.meta_bytes <= limits::META_ROOM_BYTES
            && self.groups <= limits::TOKEN_GROUPS_MAX_COUNT
            && self.keys <= limits::TOKEN_KEYS_MAX_COUNT
    }
}

fn streams(aim: Option<&Aim>) -> &[StreamId] {
    aim.map_or(&[], |aim| &aim.streams)
}

fn condition(aim: Option<&Aim>) -> Option<&Condition> {
    aim.and_then(|aim| aim.condition.as_ref())
}

/// Whether an append belongs to the group of the one before it, which is to the same streams and writes `written` parts.
fn joins(before: Option<&Aim>, aim: Option<&Aim>, written: usize) -> bool {
    match (condition(before), condition(aim)) {
        (None, None) => true,
        // In several streams, one that says nothing of one of them writes all of it.
        (Some(before), Some(condition)) => {
            let is_blind = |it: &Condition| it.reads.is_empty() && !it.writes.is_empty();
            let fits = written + condition.writes.len() <= limits::CONDITION_KEYS_MAX_COUNT;
            streams(aim).len() == 1 && is_blind(before) && is_blind(condition) && fits
        }
        _ => false,
    }
}

/// The groups of a batch, none if no entry has to do with a stream.
pub(super) fn groups_of(entries: &[Queued]) -> Vec<TokenGroup> {
    if entries.iter().all(|queued| queued.aim.is_none()) {
        return Vec::new();
    }
    let mut groups: Vec<TokenGroup> = Vec::with_capacity(entries.len());
    let mut before: Option<&Aim> = None;
    for queued in entries {
        let aim = queued.aim.as_deref();
        let written = |group: &TokenGroup| group.condition.as_ref().map_or(0, |it| it.writes.len());
        match groups.last_mut() {
            Some(last) if last.streams[..] == *streams(aim) && joins(before, aim, written(last)) => {
                last.count += 1;
                if let (Some(all), Some(condition)) = (&mut last.condition, condition(aim)) {
                    all.writes.extend_from_slice(&condition.writes);
                }
            }
            _ => {
                let condition = condition(aim).cloned().map(Box::new);
                groups.push(TokenGroup { count: 1, streams: streams(aim).into(), condition });
            }
        }
        before = aim;
    }
    groups
}

/// Whether a grant answers what was asked.
pub(super) fn is_answer(token: &Token, grant: &Grant) -> bool {
    are_answers(&token.groups, &grant.groups)
}

/// Whether each group got what it may get.
pub(super) fn are_answers(asked: &[TokenGroup], got: &[GroupGrant]) -> bool {
    let answers = |(asked, got): (&TokenGroup, &GroupGrant)| match got {
        GroupGrant::Granted { count, places } => {
            let streams = places.iter().map(|place| place.stream);
            *count == asked.count && streams.eq(asked.streams.iter().copied())
        }
        GroupGrant::Conflict { .. } | GroupGrant::TooOld { .. } => {
            asked.condition.as_ref().is_some_and(|condition| !condition.reads.is_empty())
        }
    };
    asked.len() == got.len() && asked.iter().zip(got).all(answers)
}

/// The entries of a batch by what came of them.
pub(super) struct Sorted {
    /// Those that were granted positions, one behind the other,
    pub(super) granted: Vec<Queued>,
    /// and their groups;
    pub(super) groups: Vec<StreamGroup>,
    /// the others with why not.
    pub(super) refused: Vec<(Queued, ClientError)>,
}

/// Sorts the entries of a batch by what its groups got, which must be an answer to what was asked.
pub(super) fn sort(entries: Vec<Queued>, asked: &[TokenGroup], got: Vec<GroupGrant>) -> Sorted {
    let (granted, groups) = (Vec::with_capacity(entries.len()), Vec::with_capacity(asked.len()));
    let mut sorted = Sorted { granted, groups, refused: Vec::new() };
    let mut entries = entries.into_iter();
    for (asked, got) in asked.iter().zip(got) {
        let of_group = entries.by_ref().take(asked.count as usize);
        let refusal = match got {
            GroupGrant::Granted { count, places } => {
                sorted.granted.extend(of_group);
                StreamGroup { count, places }.add_to(&mut sorted.groups);
                continue;
            }
            GroupGrant::Conflict { key, pos } => ClientError::Conflict { key, pos },
            GroupGrant::TooOld { low_water } => ClientError::TooOld { low_water },
        };
        sorted.refused.extend(of_group.map(|queued| (queued, refusal.clone())));
    }
    sorted
}

/// Where the entries of `groups` stand, which have the positions from `first` on.
pub(super) fn placed(first: LogPos, groups: &[StreamGroup]) -> impl Iterator<Item = Placed> {
    let nths = groups.iter().flat_map(|group| (0..group.count).map(move |nth| (group, nth)));
    let placed = |(pos, (group, nth)): (u64, (&StreamGroup, u32))| {
        let pos = LogPos(pos);
        Placed { pos, places: group.places_of(nth, pos) }
    };
    (first.0..).zip(nths).map(placed)
}

impl Batch {
    /// What is asked for it.
    pub(super) fn token(&self) -> Token {
        match self.groups.is_empty() {
            true => Token::plain(self.entries.len() as u32),
            false => Token { groups: self.groups.clone() },
        }
    }

    /// Writes what was granted positions, in the epoch of `view`, and tells the rest why not.
    pub(super) async fn write_granted(mut self, view: &View, grant: Grant) {
        let token = self.token();
        if !is_answer(&token, &grant) {
            let error = CallError::Mismatch { asked: Kind::Token, answered: Kind::Grant };
            let error = self.failed(view, Phase::Token, error);
            return self.fail_all(&error);
        }
        let (asked, entries) = (self.entries.len(), std::mem::take(&mut self.entries));
        let Sorted { mut granted, groups, refused } = sort(entries, &token.groups, grant.groups);
        for (queued, error) in refused {
            self.inner.appender.finish(queued, Err(error));
        }
        if granted.len() < asked {
            self.inner.appender.number(&mut granted);
        }
        self.entries = granted;
        if !self.entries.is_empty() {
            self.write(view, grant.first, groups, Earlier::Never).await;
        }
    }
}
