//! Every limit of the shared log, named once. The wire's counts and lengths are checked against these before a byte is
//! trusted.

/// Largest entry, in bytes of data.
pub const ENTRY_MAX_BYTES: usize = 1 << 20;

/// Entries of one run at the most: in one write, in one run of a reply, in one range of a fill.
pub const RUN_MAX_COUNT: usize = 16_384;

/// Bytes of data in one write at the most.
pub const WRITE_MAX_BYTES: usize = 4 << 20;

/// Bytes of body and data that one read may ask for; a reply may go over the limit that was asked for by one entry, never
/// over this and one entry.
pub const READ_MAX_BYTES: usize = 4 << 20;

/// Address ranges in one read, fill or trim at the most.
pub const RANGES_MAX_COUNT: usize = 1024;

/// Runs in one reply at the most.
pub const RUNS_MAX_COUNT: usize = 4096;

/// Addresses that one fill may touch, over all its ranges.
pub const FILL_MAX_COUNT: u64 = 65_536;

/// Outcomes in one reply at the most: every address of a write or a fill may have one of its own.
pub const OUTCOMES_MAX_COUNT: usize = 65_536;

/// Positions in one grant at the most.
pub const GRANT_MAX_COUNT: u32 = 65_536;

/// Batches whose grants a sequencer remembers: many more than clients have under way, so that a batch that is sent again is
/// found, and that a client which appends now and then is rarely taken for one that may be forgotten. 40 bytes each.
pub const SEQUENCER_REMEMBERED_MAX_COUNT: usize = 65_536;

/// Writes of parts of streams that a sequencer remembers, for conditions: of five seconds at 100,000 a second. 100 bytes each.
pub const SEQUENCER_WRITES_MAX_COUNT: usize = 1 << 19;

/// Streams that a sequencer knows: all that there are. 60 bytes each, and 24 more if a checkpoint told of it.
pub const STREAMS_KNOWN_MAX_COUNT: usize = 1 << 24;

/// Positions in streams that a sequencer grants until it makes a checkpoint of where streams end; and an eighth of their number more, so
/// that checkpoints of many streams do not cost more than their entries. A new sequencer reads as many places, at about half a microsecond each.
pub const CHECKPOINT_EVERY_COUNT: u64 = 8192;

/// Positions of the log between two checkpoints at the most, once there are streams.
pub const CHECKPOINT_POSITIONS_MAX: u64 = 1 << 20;

/// Bytes of a stream's name.
pub const STREAM_NAME_MAX_BYTES: usize = 255;

/// Groups of appends in one request for positions.
pub const TOKEN_GROUPS_MAX_COUNT: usize = 1024;

/// Parts of streams that one condition names: those that were read and those that are written, each.
pub const CONDITION_KEYS_MAX_COUNT: usize = 1024;

/// Parts of streams that the conditions of one request for positions name together.
pub const TOKEN_KEYS_MAX_COUNT: usize = 65_536;

/// Streams whose ends are asked for together.
pub const CHECK_STREAMS_MAX_COUNT: usize = 1024;

/// Positions that a client searches for a batch whose sequencer is gone or has forgotten it; past that it says that the
/// outcome is unknown.
pub const SEARCH_MAX_COUNT: u64 = 1 << 20;

/// Full units that an append may come to until its client is told so: each costs a position.
pub const FULL_UNITS_MAX_COUNT: u32 = 8;

/// Streams that one entry may belong to.
pub const STREAMS_MAX_COUNT: usize = 16;

/// Bytes of a run's identity and of its groups, encoded: a batch of a hundred appends, each to a stream of its own.
pub const META_MAX_BYTES: usize = 4096;

/// Bytes of groups in a meta.
pub const META_ROOM_BYTES: usize =
    META_MAX_BYTES - crate::entry::META_HEAD_BYTES - crate::entry::GROUPS_HEAD_BYTES;

/// Bytes of a body: what a read may ask for, should all of it be heads and tables, and the head of one more entry.
pub const BODY_MAX_BYTES: usize = READ_MAX_BYTES + (64 << 10);

/// Bytes of data in one frame.
pub const DATA_MAX_BYTES: usize = READ_MAX_BYTES + ENTRY_MAX_BYTES;

/// Bytes after the header of a frame.
pub const FRAME_MAX_BYTES: usize = BODY_MAX_BYTES + DATA_MAX_BYTES;

/// Bytes after the header of the first frame of a connection: a `Hello`, with room for what later versions add to it.
pub const GREETING_MAX_BYTES: usize = 1024;

/// Connections of clients that a node serves at each address where it listens. One more is refused when it greets.
pub const CONNECTIONS_MAX_COUNT: usize = 4096;

/// The same of other nodes: what clients take must not shut them out.
pub const PEERS_MAX_COUNT: usize = 4096;

/// The same of those who have not greeted yet. For one more, the one that has waited longest is closed.
pub const STRANGERS_MAX_COUNT: usize = 1024;

/// Bytes of credit that a subscription may hold.
pub const CREDIT_MAX_BYTES: u64 = 1 << 30;

/// Counters in one status reply.
pub const COUNTERS_MAX_COUNT: usize = 512;

/// Bytes of a counter's name.
pub const NAME_MAX_BYTES: usize = 64;

/// Bytes of a node's address, as text.
pub const ADDRESS_MAX_BYTES: usize = 256;

/// Bytes of an encoded layout.
pub const LAYOUT_MAX_BYTES: usize = 500 << 10;

/// Bytes of an acceptor's record: the latest layout, one that is accepted for the next epoch, and what fits of older ones.
pub const ACCEPTOR_MAX_BYTES: usize = 1 << 20;

const _: () = assert!(RUN_MAX_COUNT <= GRANT_MAX_COUNT as usize, "a batch is one grant");
const _: () = assert!(
    TOKEN_GROUPS_MAX_COUNT * (STREAMS_MAX_COUNT * crate::entry::PLACE_BYTES + 48) + TOKEN_KEYS_MAX_COUNT * 24
        <= BODY_MAX_BYTES,
    "a request for positions and its answer fit in a body"
);
const _: () = assert!(2 * CONDITION_KEYS_MAX_COUNT <= TOKEN_KEYS_MAX_COUNT);
const _: () = assert!(ENTRY_MAX_BYTES <= WRITE_MAX_BYTES);
const _: () = assert!(WRITE_MAX_BYTES <= DATA_MAX_BYTES);
const _: () = assert!(META_MAX_BYTES <= u16::MAX as usize);
const _: () = assert!(META_MAX_BYTES <= ithaca_chain::limits::META_MAX_BYTES);
const _: () = assert!(
    META_ROOM_BYTES >= crate::entry::GROUP_HEAD_BYTES + STREAMS_MAX_COUNT * crate::entry::PLACE_BYTES,
    "an append to as many streams as there may be fits in a meta"
);
const _: () =
    assert!(RUN_MAX_COUNT * 8 + META_MAX_BYTES + 64 <= BODY_MAX_BYTES, "a write's table fits in a body");
const _: () = assert!(
    READ_MAX_BYTES + META_MAX_BYTES + 64 <= BODY_MAX_BYTES,
    "a reply that keeps to its limit but for one entry fits, however small its entries are"
);
const _: () =
    assert!(OUTCOMES_MAX_COUNT * 40 + 64 <= BODY_MAX_BYTES, "every address may have its own outcome");
const _: () = assert!(FILL_MAX_COUNT as usize <= OUTCOMES_MAX_COUNT && RUN_MAX_COUNT <= OUTCOMES_MAX_COUNT);
const _: () = assert!(LAYOUT_MAX_BYTES + 64 <= BODY_MAX_BYTES);
const _: () = assert!(COUNTERS_MAX_COUNT * (NAME_MAX_BYTES + 12) + 256 <= BODY_MAX_BYTES);
const _: () = assert!(FRAME_MAX_BYTES <= u32::MAX as usize);

/// Requests that a unit keeps waiting for its drive.
pub const UNIT_PENDING_MAX_COUNT: usize = 65_536;

/// Bytes of data in them.
pub const UNIT_PENDING_MAX_BYTES: usize = 64 << 20;

/// Bytes of entries that a node holds for each other node that it has handed them to.
pub const RELAY_MAX_BYTES: usize = 64 << 20;

/// Bytes that cold reads hold together in a unit, from before their records are looked up until the answers are handed over to their connections:
/// 16 of the largest, or some 8,000 of 4 KB. Others wait, and hold nothing.
pub const COLD_READS_MAX_BYTES: usize = 64 << 20;

/// Bytes unsent to one connection past which no more is read from it, and none of its cold reads begins.
pub const UNSENT_MAX_BYTES: usize = 16 << 20;

const _: () = assert!(READ_MAX_BYTES <= COLD_READS_MAX_BYTES);
const _: () = assert!(
    UNSENT_MAX_BYTES + READ_MAX_BYTES + COLD_READS_MAX_BYTES < ithaca_env::limits::OUTBOX_MAX_BYTES,
    "cold reads do not end the connection of who is slow to take their answers"
);

/// Ranges of taken addresses, and of trimmed ones, that a unit remembers.
pub const UNIT_RANGES_MAX_COUNT: usize = 1 << 20;

const _: () = assert!(WRITE_MAX_BYTES <= UNIT_PENDING_MAX_BYTES);
const _: () = assert!(RANGES_MAX_COUNT <= UNIT_RANGES_MAX_COUNT);

/// Nodes in a layout.
pub const NODES_MAX_COUNT: usize = 1024;

/// Stripes that one beat tells of: half of them the newest, in which entries are written, the others in turn.
pub const MARKS_MAX_COUNT: usize = 64;

const _: () = assert!(
    NODES_MAX_COUNT * 8 + MARKS_MAX_COUNT * 24 + 64 <= BODY_MAX_BYTES,
    "a beat may suspect every node"
);

/// Ranges of positions in a layout. Two are added when a node goes and comes back and something is appended meanwhile, and
/// those whose positions are all trimmed go; so this is 4,000 restarts of nodes over what is kept.
pub const LAYOUT_RANGES_MAX_COUNT: usize = 8192;

const _: () = assert!(LAYOUT_RANGES_MAX_COUNT <= u16::MAX as usize, "a layout counts them in 16 bits");

/// Stripes in a range of a layout.
pub const STRIPES_MAX_COUNT: usize = 256;

/// Extents that one seal asks about: a unit may be in every stripe of a range.
pub const SEAL_EXTENTS_MAX_COUNT: usize = STRIPES_MAX_COUNT;

const _: () = assert!(SEAL_EXTENTS_MAX_COUNT <= RANGES_MAX_COUNT);

/// Replicas of a stripe.
pub const REPLICAS_MAX_COUNT: usize = 8;

/// Addresses of a stripe: it has a block of them, which no other stripe has ever, on any unit. 500 years of appends at 1,000 a
/// second.
pub const STRIPE_ADDRESSES: u64 = ithaca_chain::limits::KEY_BLOCK;

const _: () = assert!(u64::MAX / STRIPE_ADDRESSES + 1 >= 1_000_000, "a million stripes can begin");

/// Decided tails that a layout repeats, the latest ones.
pub const TAILS_MAX_COUNT: usize = 64;

/// By how many epochs a layout that goes on [without](crate::layout::Layout::without) nodes is above the one before it: those who are gone may have
/// decided some that nobody else has heard of.
pub const LOSS_EPOCHS: u64 = 1 << 20;

/// Blocks of addresses that such a layout leaves out: they may have begun stripes in some of them.
pub const LOSS_BLOCKS: u64 = 1 << 10;

/// By how many rounds a ballot may be above the one that an acceptor has promised. An epoch sees a few attempts, each of which takes a round or
/// two; one wrong number takes so many, of which there are as many again.
pub const ROUNDS_AHEAD_MAX: u64 = 1 << 32;

/// Layouts that an acceptor remembers, the latest ones.
pub const LAYOUT_HISTORY_MAX_COUNT: usize = 8;

const _: () = assert!(NODES_MAX_COUNT * (ADDRESS_MAX_BYTES + 24) <= LAYOUT_MAX_BYTES);
const _: () = assert!(2 * LAYOUT_MAX_BYTES + 128 <= ACCEPTOR_MAX_BYTES);

/// Nodes that keep layouts, in one layout: an odd number of them, so that none of them only adds to what may fail.
pub const ACCEPTORS_MAX_COUNT: usize = 5;

/// How long an acceptor's grant of a lease is good for, in milliseconds from when it was asked for, by the clock of whoever
/// asked.
pub const LEASE_MS: u64 = 200;

/// By how many thousandths the monotonic clocks of two nodes may run apart. Quartz is off by 0.1 at most, and a clock that is
/// being adjusted by 0.5.
pub const CLOCK_DRIFT_PER_MILLE: u64 = 10;

/// How long a reconfiguration waits after its majority of promises, in milliseconds by its own clock: no lease of the epoch
/// before is valid then.
pub const LEASE_WAIT_MS: u64 = (LEASE_MS * (1000 + CLOCK_DRIFT_PER_MILLE)).div_ceil(1000);

const _: () = assert!(LEASE_WAIT_MS <= 300, "the wait is a part of the time that a failover takes");

/// How long committed entries may be shown to whoever asks in whatever epoch, after a lease that a majority granted was asked for:
/// from before the failure of a node until the layout without it is known.
pub const SHOW_MS: u64 = 3 * LEASE_MS;

/// How long trims wait, in milliseconds, where a replica that was left out may still show what is trimmed.
pub const SHOW_WAIT_MS: u64 = (SHOW_MS * (1000 + CLOCK_DRIFT_PER_MILLE)).div_ceil(1000);

const _: () =
    assert!(SHOW_MS >= LEASE_MS + LEASE_WAIT_MS, "a change of layout that waits for leases is bridged");

/// Runs that one request may become: as many as the chain stores together. A fill or a write of addresses that are free and
/// taken by turns may need more, and is refused.
pub const PARTS_MAX_COUNT: usize = ithaca_chain::limits::BATCH_RUNS_MAX;

const _: () = assert!(RANGES_MAX_COUNT <= PARTS_MAX_COUNT, "a fill of nothing but holes is stored");
const _: () = assert!(RUN_MAX_COUNT <= ithaca_chain::limits::RUN_RECORDS_MAX);
const _: () = assert!(ENTRY_MAX_BYTES <= ithaca_chain::limits::RECORD_MAX_BYTES);
const _: () = assert!(META_MAX_BYTES <= ithaca_chain::limits::META_MAX_BYTES);

/// Ranges of addresses that a unit has voided.
pub const VOIDED_MAX_COUNT: usize = 1024;

/// Addresses whose streams a unit finds out together, and remembers together.
pub const STREAM_BLOCK_COUNT: u64 = 4096;

/// Bytes of memory for what a unit remembers of streams: at 24 bytes for entries in a row that belong to the same one.
pub const STREAM_INDEX_MAX_BYTES: usize = 64 << 20;

/// Blocks that one read of a stream looks through,
pub const STREAM_LOOKED_MAX_COUNT: usize = 1024;

/// and those of them whose records it has to look at because they are not remembered. Then it answers how far it came.
pub const STREAM_LEARNED_MAX_COUNT: usize = 32;

/// Entries of a stream that are found, in however many blocks, before they are read, those on the drive all at the same time.
pub const STREAM_GATHERED_COUNT: u64 = 256;

const _: () = assert!(STREAM_BLOCK_COUNT <= u16::MAX as u64, "a place in a block takes 16 bits");
const _: () = assert!(STRIPE_ADDRESSES.is_multiple_of(STREAM_BLOCK_COUNT), "no block is of two stripes");

/// How long a question about a stream may wait, in milliseconds, for what is not there yet.
pub const STREAM_WAIT_MAX_MS: u16 = 10_000;

/// How long a question for a later layout may wait, in milliseconds.
pub const LAYOUT_WAIT_MAX_MS: u16 = 10_000;

/// Questions of one connection that wait. One more is answered at once with what is there.
pub const WAITS_MAX_COUNT: usize = 1024;

/// Streams that a sequencer is watching for those who wait.
pub const WATCHES_MAX_COUNT: usize = 1 << 16;

/// Streams whose releases stand in one record,
pub const RELEASES_MAX_COUNT: usize = 32_000;

/// and records after which one of all of them takes their place.
pub const RELEASE_RECORDS_MAX_COUNT: usize = 256;

const _: () = assert!(RELEASES_MAX_COUNT * 32 + 64 <= ENTRY_MAX_BYTES, "a record is an entry");

/// Bytes of a question about an object: the calls of a transaction may be in it, which fit into a record.
pub const VIEW_QUESTION_MAX_BYTES: usize = ENTRY_MAX_BYTES;

/// Bytes of what a node says about an object.
pub const VIEW_ANSWER_MAX_BYTES: usize = READ_MAX_BYTES;

/// Questions about objects that a node works on.
pub const VIEW_QUESTIONS_MAX_COUNT: usize = 8192;

const _: () = assert!(VIEW_ANSWER_MAX_BYTES <= DATA_MAX_BYTES && VIEW_QUESTION_MAX_BYTES <= DATA_MAX_BYTES);

/// Bytes of a drive's path, in orders about it and where it is remembered.
pub const DRIVE_PATH_MAX_BYTES: usize = 1024;

/// Bytes of the record of where the drives of all units of a data directory are.
pub const DRIVES_RECORD_MAX_BYTES: usize = 256 << 10;

/// How long an order about drives may wait to be answered, in milliseconds, while the node works on it.
pub const DRIVES_WAIT_MAX_MS: u32 = 10_000;

/// Bytes of the line that says why drives are not changed: room for the paths of a whole link.
pub const DRIVES_TOLD_MAX_BYTES: usize = 8192;

const _: () = assert!(DRIVES_TOLD_MAX_BYTES > (ithaca_chain::limits::SIDES_MAX + 1) * DRIVE_PATH_MAX_BYTES);

/// Positions above the tail that a fill may be of. Those of tokens that a sequencer gave and that are lost with it are; one of a slip of the
/// hand would make the log go on behind it for ever, once there is another sequencer.
pub const FILL_AHEAD_MAX_COUNT: u64 = 65_536;

/// By how many addresses a write, fill or trim may lie above all that a unit knows of the stripe: the highest address that it holds of
/// it, and the decided tail. As many positions as all clients that a node serves can have under way together, each in 64 batches, were
/// they all of one stripe.
pub const REACH_MAX_COUNT: u64 = 1 << 32;

const _: () = assert!(REACH_MAX_COUNT >= CONNECTIONS_MAX_COUNT as u64 * 64 * RUN_MAX_COUNT as u64);
const _: () =
    assert!(REACH_MAX_COUNT < STRIPE_ADDRESSES / 1024, "and a small part of the addresses that there are");
