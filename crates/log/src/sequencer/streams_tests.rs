//! Grants in streams against a model that forgets nothing.

use std::collections::BTreeMap;

use ithaca_env::sim::Random;

use crate::entry::StreamPlaces;
use crate::limits;
use crate::planted::{Planted, PlantedBug};
use crate::pos::{BatchNo, ClientId, Epoch, LogPos, RequestNo, StreamId, StreamPos};
use crate::sequencer::{KnownStreams, Sequencer};
use crate::stream::{Condition, ConflictKey, KeyHash, StreamTail};
use crate::wire::{BatchHead, Grant, GroupGrant, Refusal, TokenGroup};

/// As many writes as no run has.
const MANY: usize = 1000;
/// Where the sequencer under test begins.
const START: u64 = 100;

/// Everything that was granted: what the sequencer should know.
struct Model {
    next: u64,
    /// Where each stream ends.
    tails: BTreeMap<StreamId, StreamTail>,
    /// The position of every write since the start, and what it is of.
    writes: Vec<(LogPos, ConflictKey)>,
    /// Where each stream ended before. What was written there nobody says.
    before: BTreeMap<StreamId, StreamTail>,
    /// Whether the sequencer may have forgotten the latest of several conflicts.
    is_forgetful: bool,
}

impl Model {
    /// What streams were before: 0 to 2 had entries, the others none.
    fn new(is_forgetful: bool) -> Self {
        let tail =
            |stream: u64| StreamTail { next: StreamPos(stream + 1), last: Some(LogPos(50 + 20 * stream)) };
        let tails: BTreeMap<_, _> = (0..3).map(|stream| (StreamId(stream.into()), tail(stream))).collect();
        Self { next: START, before: tails.clone(), tails, writes: Vec::new(), is_forgetful }
    }

    /// Whether something that nobody knows of may have been written at or above `snapshot` to what `key` is about.
    fn is_unknown(&self, key: ConflictKey, snapshot: LogPos) -> bool {
        self.before.get(&key.stream).is_some_and(|tail| tail.last >= Some(snapshot))
    }

    /// The latest write at or above `snapshot` of what `key` is about.
    fn conflict(&self, key: ConflictKey, snapshot: LogPos) -> Option<LogPos> {
        self.conflicts(key, snapshot).max()
    }

    /// The writes at or above `snapshot` of what `key` is about.
    fn conflicts(&self, key: ConflictKey, snapshot: LogPos) -> impl Iterator<Item = LogPos> {
        let is_about = move |written: &ConflictKey| {
            let whole = key.key == KeyHash::ALL || written.key == KeyHash::ALL;
            written.stream == key.stream && (whole || written.key == key.key)
        };
        let before =
            self.tails.get(&key.stream).and_then(|tail| tail.last).filter(|_| key.key == KeyHash::ALL);
        let writes = self.writes.iter().filter(move |(_, written)| is_about(written)).map(|(pos, _)| *pos);
        writes.chain(before).filter(move |&pos| pos >= snapshot)
    }

    /// Notes what a group was granted from the next position on; what is wrong with it.
    fn granted(&mut self, group: &TokenGroup, answer: &GroupGrant) -> Result<(), String> {
        let wrong = |what: &str| Err(format!("{what}: {group:?} got {answer:?}"));
        let condition = group.condition.clone().unwrap_or_default();
        let conflict = condition.reads.iter().find_map(|&key| self.conflict(key, condition.snapshot));
        match answer {
            GroupGrant::Granted { .. } if conflict.is_some() => return wrong("a false commit"),
            GroupGrant::Granted { .. }
                if condition.reads.iter().any(|&key| self.is_unknown(key, condition.snapshot)) =>
            {
                return wrong("a commit that may be a false one");
            }
            GroupGrant::Granted { count, places } => {
                let (first, count) = (self.next, u64::from(*count));
                self.next += count;
                let last = LogPos(self.next - 1);
                for (&stream, place) in group.streams.iter().zip(places) {
                    let tail = self.tails.entry(stream).or_default();
                    if (place.stream, place.position, place.previous) != (stream, tail.next, tail.last) {
                        return wrong("a wrong place");
                    }
                    *tail = StreamTail { next: StreamPos(tail.next.0 + count), last: Some(last) };
                    let keys = condition.writes.iter().filter(|key| key.stream == stream);
                    let mut keys: Vec<ConflictKey> = keys.copied().collect();
                    if keys.is_empty() {
                        keys.push(ConflictKey { stream, key: KeyHash::ALL });
                    }
                    self.writes.extend(
                        (first..self.next).flat_map(|pos| {
                            keys.iter().map(move |key| (LogPos(pos), *key)).collect::<Vec<_>>()
                        }),
                    );
                }
            }
            GroupGrant::Conflict { key, pos }
                if !self.conflicts(*key, condition.snapshot).any(|it| it == *pos) =>
            {
                return wrong("a false conflict");
            }
            GroupGrant::Conflict { key, pos }
                if !self.is_forgetful && self.conflict(*key, condition.snapshot) != Some(*pos) =>
            {
                return wrong("not the latest conflict");
            }
            GroupGrant::TooOld { low_water } if condition.snapshot >= *low_water => {
                return wrong("not too old");
            }
            GroupGrant::TooOld { low_water } if *low_water > LogPos(self.next) => {
                return wrong("a low-water mark that cannot be asked for");
            }
            GroupGrant::Conflict { .. } | GroupGrant::TooOld { .. } => {}
        }
        Ok(())
    }
}

/// A few groups, drawn at random.
fn draw(random: &mut Random, next: u64) -> Vec<TokenGroup> {
    let key = |random: &mut Random, stream: StreamId| {
        let part = random.below(5);
        ConflictKey { stream, key: if part == 0 { KeyHash::ALL } else { KeyHash(part) } }
    };
    let group = |random: &mut Random| {
        let first = random.below(5);
        let streams: Vec<StreamId> =
            (0..random.below(3)).map(|nth| StreamId(((first + nth) % 5).into())).collect();
        let condition = (random.below(3) > 0).then(|| {
            let reads = (0..random.below(3)).map(|_| {
                let stream = StreamId(random.below(6).into());
                key(random, stream)
            });
            let reads = reads.collect();
            let writes = streams.iter().filter(|_| random.below(4) > 0).copied().collect::<Vec<_>>();
            let writes = writes.into_iter().map(|stream| key(random, stream)).collect();
            Condition { snapshot: LogPos((next + 1).saturating_sub(random.below(30))), reads, writes }
        });
        let is_blind = condition.as_ref().is_none_or(|it: &Condition| it.reads.is_empty());
        let count = if is_blind { 1 + random.below(3) as u32 } else { 1 };
        TokenGroup { count, streams: streams.into(), condition: condition.map(Box::new) }
    };
    (0..1 + random.below(4)).map(|_| group(random)).collect()
}

/// Asks a sequencer that remembers `writes` writes for groups, and the model whether the answers are right. How many
/// groups were told that they are too old.
fn run(planted: Planted, seed: u64, writes: usize) -> Result<usize, String> {
    let mut model = Model::new(writes < MANY);
    let mut sequencer = Sequencer::start_planted(Epoch(1), LogPos(START), planted).remembering_writes(writes);
    sequencer.learn_streams(KnownStreams::of(model.tails.clone()));
    let (mut random, mut too_old) = (Random::new(seed), 0);
    for _ in 0..60 {
        let groups = draw(&mut random, model.next);
        let first = LogPos(model.next);
        let grant = sequencer.grant_groups(Epoch(1), &groups).map_err(|refusal| refusal.to_string())?;
        if grant.first != first || grant.groups.len() != groups.len() {
            return Err(format!("{grant:?} from {first} on"));
        }
        for (group, answer) in groups.iter().zip(&grant.groups) {
            too_old += usize::from(matches!(answer, GroupGrant::TooOld { .. }));
            model.granted(group, answer)?;
        }
    }
    Ok(too_old)
}

#[test]
fn grants_in_streams_are_those_of_a_model_that_forgets_nothing() {
    let too_old =
        |writes| (0..400).map(|seed| run(Planted::NONE, seed, writes).expect("no difference")).sum();
    let (little, much): (usize, usize) = (too_old(6), too_old(MANY));
    assert!(little > much && much > 0, "{little} too old with a small table, {much} with a large one");
}

#[test]
fn each_planted_fault_of_streams_is_found() {
    for bug in [
        PlantedBug::ConditionUnchecked,
        PlantedBug::WholeKeyIgnored,
        PlantedBug::EvictedIsUnwritten,
        PlantedBug::StreamPositionReused,
        PlantedBug::StreamsForgotten,
    ] {
        let is_found = (0..400).any(|seed| run(Planted::bug(bug), seed, 6).is_err());
        assert!(is_found, "{bug:?}");
    }
}

#[test]
fn a_quiet_stream_is_remembered_however_much_is_written_to_others() {
    // Two transactions that have read it at its end would both be refused as too old, until one of them comes alone.
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(START)).remembering_writes(4);
    let (quiet, busy) = (StreamId(300), StreamId(301));
    let tail = StreamTail { next: StreamPos(9), last: Some(LogPos(20)) };
    sequencer.learn_streams(KnownStreams::of([(quiet, tail)].into()));
    let key = |part| ConflictKey { stream: quiet, key: KeyHash(part) };
    let group = |snapshot, part| {
        let condition = Condition {
            snapshot: LogPos(snapshot),
            reads: vec![key(part)].into(),
            writes: vec![key(part)].into(),
        };
        TokenGroup { count: 1, streams: vec![quiet].into(), condition: Some(Box::new(condition)) }
    };
    let of_busy = |part| {
        let writes = vec![ConflictKey { stream: busy, key: KeyHash(part) }].into();
        let condition = Condition { snapshot: LogPos(START), reads: vec![].into(), writes };
        TokenGroup { count: 1, streams: vec![busy].into(), condition: Some(Box::new(condition)) }
    };
    let mut grant = |groups: &[TokenGroup]| {
        let groups = [&(0..10).map(of_busy).collect::<Vec<_>>(), groups].concat();
        let granted = sequencer.grant_groups(Epoch(1), &groups).expect("it knows its streams");
        granted.groups[10..].to_vec()
    };
    let granted = grant(&[group(21, 1), group(21, 2)]);
    assert_eq!(
        granted.iter().map(GroupGrant::count).collect::<Vec<_>>(),
        [1, 1],
        "nobody has written it since"
    );
    // Below its end before the epoch nobody knows; and its own writes since are forgotten as those of others are made.
    let granted = grant(&[group(112, 3), group(20, 4)]);
    assert_eq!(granted[0].count(), 1);
    assert_eq!(granted[1], GroupGrant::TooOld { low_water: LogPos(112) });
}

#[test]
fn appends_to_whole_streams_take_the_room_of_no_part() {
    // They came to push out what transactions had written, so that others were told to read it all again.
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(START)).remembering_writes(4);
    sequencer.learn_streams(KnownStreams::default());
    let (stream, other) = (StreamId(300), StreamId(301));
    let transaction = |snapshot, part| {
        let key = ConflictKey { stream, key: KeyHash(part) };
        let (reads, writes) = (vec![key].into(), vec![key].into());
        let condition = Condition { snapshot: LogPos(snapshot), reads, writes };
        TokenGroup { count: 1, streams: vec![stream].into(), condition: Some(Box::new(condition)) }
    };
    let of_all = TokenGroup { count: 1, streams: vec![other].into(), condition: None };
    let mut grant = |group: TokenGroup| {
        let groups = [vec![of_all.clone(); 10], vec![group]].concat();
        sequencer.grant_groups(Epoch(1), &groups).expect("it knows its streams").groups.swap_remove(10)
    };
    // At 110, 121, 132; each of the same old snapshot, with a part of its own.
    for part in 1..4 {
        assert_eq!(grant(transaction(START, part)).count(), 1, "{part}");
    }
    let key = ConflictKey { stream, key: KeyHash(1) };
    assert_eq!(grant(transaction(START, 1)), GroupGrant::Conflict { key, pos: LogPos(110) });
}

#[test]
fn a_new_sequencer_grants_nothing_in_streams_before_it_knows_them() {
    // A stream position that is granted twice would be in the log for ever.
    let mut sequencer = Sequencer::start(Epoch(2), LogPos(START));
    let plain = TokenGroup { count: 2, ..TokenGroup::default() };
    let of_stream = TokenGroup { count: 1, streams: vec![StreamId(300)].into(), condition: None };
    let refused = sequencer.grant_groups(Epoch(2), &[plain.clone(), of_stream.clone()]);
    assert_eq!(refused, Err(Refusal::StreamsUnknown));
    assert_eq!(sequencer.stream_tails(Epoch(2), &[StreamId(300)]), Err(Refusal::StreamsUnknown));
    let granted = sequencer.grant_groups(Epoch(2), &[plain]);
    let answer = GroupGrant::Granted { count: 2, places: StreamPlaces::new() };
    assert_eq!(granted, Ok(Grant { first: LogPos(START), groups: vec![answer] }), "nothing was used up");
    let tail = StreamTail { next: StreamPos(8), last: Some(LogPos(70)) };
    sequencer.learn_streams(KnownStreams::of([(StreamId(300), tail)].into()));
    assert_eq!(sequencer.stream_tails(Epoch(2), &[StreamId(300), StreamId(301)]).map(|it| it[0]), Ok(tail));
    let granted = sequencer.grant_groups(Epoch(2), &[of_stream]).map(|grant| grant.groups);
    let Ok([GroupGrant::Granted { places, .. }]) = granted.as_deref() else { panic!("{granted:?}") };
    assert_eq!((places[0].position, places[0].previous), (tail.next, tail.last));
}

#[test]
fn a_batch_of_groups_that_is_sent_again_is_granted_nothing_and_told_where_to_look() {
    // Granted again, each of its entries would be in the log twice.
    let run = |planted| {
        let mut sequencer = Sequencer::start_planted(Epoch(1), LogPos(START), planted);
        sequencer.learn_streams(KnownStreams::default());
        let key = ConflictKey { stream: StreamId(300), key: KeyHash(1) };
        let of = |reads: &[ConflictKey], snapshot| TokenGroup {
            count: 1,
            streams: vec![StreamId(300)].into(),
            condition: Some(Box::new(Condition {
                snapshot: LogPos(snapshot),
                reads: reads.into(),
                writes: vec![key].into(),
            })),
        };
        let mut send = |number, groups: &[TokenGroup]| {
            let (client, request, after) = (ClientId(7), RequestNo(number), LogPos(START));
            let batch = BatchHead { client, number: BatchNo(number), request, after };
            sequencer.append_groups(Epoch(1), &batch, groups, Ok(()))
        };
        let mixed = [of(&[], 0), of(&[key], START), of(&[], 0)];
        let granted = send(0, &mixed).expect("granted");
        assert_eq!(granted.groups.iter().map(GroupGrant::count).collect::<Vec<_>>(), [1, 0, 1]);
        let refused = [of(&[key], START)];
        assert_eq!(send(1, &refused).expect("decided").count(), 0);
        let again = (send(0, &mixed).err(), send(1, &refused).map(|grant| grant.count()));
        again == (Some(Refusal::Forgotten { from: LogPos(START + 2) }), Ok(0))
    };
    assert!(run(Planted::NONE));
    assert!(!run(Planted::bug(PlantedBug::BatchGrantedTwice)));
}

#[test]
fn groups_of_nothing_or_of_too_much_use_nothing_up() {
    let mut sequencer = Sequencer::start(Epoch(1), LogPos(0));
    let of = |count| TokenGroup { count, ..TokenGroup::default() };
    for groups in [vec![], vec![of(1), of(0)], vec![of(limits::GRANT_MAX_COUNT), of(1)]] {
        let refused = sequencer.grant_groups(Epoch(1), &groups);
        assert!(matches!(refused, Err(Refusal::TooLarge { .. })), "{refused:?}");
    }
    assert_eq!(sequencer.tail(Epoch(1)), Ok(LogPos(0)));
}
