//! Golden frames, and what bytes that are no frames do: nothing.

use bytes::{Bytes, BytesMut};
use ithaca_chain::{Run, RunKind, Table};
use ithaca_env::sim::Random;

use super::*;
use crate::entry::{EntryMeta, StreamGroup, StreamPlace, StreamPlaces};
use crate::layout::LeasesLeft;
use crate::limits;
use crate::pos::*;
use crate::stream::{Condition, ConflictKey, KeyHash, StreamTail};

/// A frame of a test: its name in the golden file, its head, its message as it is encoded, its data.
struct Sample {
    name: &'static str,
    bytes: BytesMut,
}

fn sample<M: Message>(name: &'static str, head: Head, message: M, data: &[&[u8]]) -> Sample {
    let mut bytes = BytesMut::new();
    encode(&mut bytes, head, &message, data);
    Sample { name, bytes }
}

fn meta() -> EntryMeta {
    EntryMeta::new(ClientId(0xC11E_0001), Addr(40), RequestNo(7))
}

fn head() -> Head {
    Head::new(RequestId(5), Epoch(3))
}

fn account(state: NodeState) -> Account {
    let marks =
        vec![Mark { start: Addr(1 << 44), trimmed: Addr((1 << 44) + 2), complete: Addr((1 << 44) + 9) }];
    Account { node: NodeId(2), state, write_us: 900, suspects: vec![NodeId(1), NodeId(3)], marks }
}

fn hello() -> Hello {
    Hello {
        version_min: 1,
        version_max: PROTOCOL_VERSION,
        client: ClientId(0xC11E_0001),
        node: NodeId(2),
        cluster: ClusterId(0x1111_2222_3333_4444_5555_6666_7777_8888),
    }
}

fn requests() -> Vec<Sample> {
    let write = Write {
        addr: Addr(40),
        meta: meta().to_bytes(),
        table: Table::of_payloads([&b"first"[..], b"", b"third"]),
    };
    let append = Append {
        batch: BatchHead {
            client: ClientId(0xC11E_0001),
            number: BatchNo(2),
            request: RequestNo(7),
            after: LogPos(38),
        },
        table: write.table.clone(),
        groups: Vec::new(),
    };
    let range = |start, end| AddrRange::new(Addr(start), Addr(end));
    let read = |committed| {
        let ranges = vec![range(40, 43), range(90, 91)];
        Read { limit_bytes: 65_536, committed, ranges }
    };
    let place = StreamPlace {
        stream: StreamId::of_name("orders"),
        position: StreamPos(1),
        previous: Some(LogPos(12)),
    };
    let groups = vec![
        StreamGroup { count: 1, places: StreamPlaces::new() },
        StreamGroup { count: 2, places: vec![place].into() },
    ];
    let streams = EntryMeta { stride: 2, groups_from: RequestNo(6), groups, ..meta() };
    let in_stream =
        Write { addr: Addr(41), meta: streams.to_bytes(), table: Table::of_payloads([&b"in a stream"[..]]) };
    let (relay, relayed) = (Head { flags: FLAG_RELAY, ..head() }, write.clone());
    let extents = vec![range(0, 1 << 44), range(1 << 44, 2 << 44)];
    let added = ChangeCluster::Add {
        node: NodeId(4),
        address: "10.0.0.4:7420".to_owned(),
        offers: Roles::UNIT.with(Roles::LAYOUT),
    };
    vec![
        sample("hello", Head::new(RequestId(1), Epoch(0)), hello(), &[]),
        sample("token", head(), Token::plain(16), &[]),
        sample("write", head(), write, &[b"first", b"", b"third"]),
        sample("write_to_be_relayed", relay, relayed, &[b"first", b"", b"third"]),
        sample("write_to_a_stream", head(), in_stream, &[b"in a stream"]),
        sample("read", head(), read(false), &[]),
        sample("read_of_what_is_committed", head(), read(true), &[]),
        sample("fill", head(), Fill { ranges: vec![range(43, 45)] }, &[]),
        sample("trim", head(), Trim { ranges: vec![range(0, 40)] }, &[]),
        sample("check", head(), Check::default(), &[]),
        sample("check_extents", head(), Check { extents: extents.clone(), streams: Vec::new() }, &[]),
        sample("seal", head(), Seal { epoch: Epoch(3), extents }, &[]),
        sample("get_latest_layout", head(), GetLayout { epoch: None }, &[]),
        sample("watch_layout", head(), WatchLayout { known: Epoch(3), wait_ms: 500 }, &[]),
        sample("subscribe", head(), Subscribe { addr: Addr(40), credit_bytes: 1 << 20 }, &[]),
        sample("credit", head(), Credit { credit_bytes: 4096 }, &[]),
        sample("unsubscribe", head(), Unsubscribe, &[]),
        sample("get_status", head(), GetStatus, &[]),
        sample("get_trims", head(), GetTrims { extent: (40..90).into() }, &[]),
        sample("beat", head(), Beat(account(NodeState::Serving)), &[]),
        sample("beat_full", head(), Beat(account(NodeState::Full)), &[]),
        sample("add_a_node", head(), added, &[]),
        sample("remove_a_node", head(), ChangeCluster::Remove { node: NodeId(4) }, &[]),
        sample("replace_a_node", head(), ChangeCluster::Replace { node: NodeId(4) }, &[]),
        sample("set_the_minimum_of_replicas", head(), ChangeCluster::MinReplicas { count: 1 }, &[]),
        sample("append", head(), append, &[b"first", b"", b"third"]),
    ]
}

/// Reads of streams.
fn stream_reads() -> Vec<Sample> {
    let wanted = Wanted::Stream(StreamId(0x1111_2222_3333_4444_5555_6666_7777_8888));
    let read = ReadStream {
        limit_bytes: 65_536,
        committed: false,
        heads_only: false,
        last_only: false,
        known_only: false,
        wait_ms: 0,
        wanted,
        ranges: vec![(40..43).into(), (90..91).into()],
    };
    let heads = ReadStream { committed: true, heads_only: true, wanted: Wanted::EveryStream, ..read.clone() };
    let every = ReadStream { heads_only: true, wanted: Wanted::Every, ..read.clone() };
    let last = ReadStream { last_only: true, ranges: vec![(0..43).into()], ..read.clone() };
    let known = ReadStream { known_only: true, ranges: vec![(0..u64::MAX).into()], ..read.clone() };
    let waiting = ReadStream { wait_ms: 100, ranges: vec![(43..44).into()], ..read.clone() };
    let watch = WatchStream { stream: StreamId::of_name("orders"), next: StreamPos(7), wait_ms: 1000 };
    vec![
        sample("read_a_stream", head(), read, &[]),
        sample("read_heads_of_every_stream", head(), heads, &[]),
        sample("read_heads_of_every_entry", head(), every, &[]),
        sample("read_the_last_of_a_stream", head(), last, &[]),
        sample("read_what_is_known_of_a_stream", head(), known, &[]),
        sample("read_a_stream_and_wait", head(), waiting, &[]),
        sample("watch_a_stream", head(), watch, &[]),
        sample(
            "ask_a_view",
            head(),
            AskView { stream: StreamId::of_name("orders"), question: DataSum::of(b"a question") },
            &[b"a question"],
        ),
    ]
}

/// Their answers.
fn stream_replies() -> Vec<Sample> {
    let mut body = RunsBody::default();
    runs().runs.iter().for_each(|run| body.push(&run.as_ref()));
    let frame = |data: &[u8], heads_only| {
        let mut bytes = BytesMut::new();
        StreamRuns::encode_head(&mut bytes, head(), &body, data.len(), heads_only);
        bytes.extend_from_slice(data);
        bytes
    };
    vec![
        Sample { name: "stream_runs", bytes: frame(b"firstthird", false) },
        Sample { name: "stream_runs_without_data", bytes: frame(b"", true) },
        sample("view_answer", head(), ViewAnswer { answer: DataSum::of(b"an answer") }, &[b"an answer"]),
    ]
}

fn granted(count: u32, streams: &[u128]) -> GroupGrant {
    let place = |&stream: &u128| StreamPlace {
        stream: StreamId(stream),
        position: StreamPos(4),
        previous: (stream == 9).then_some(LogPos(31)),
    };
    GroupGrant::Granted { count, places: streams.iter().map(place).collect() }
}

/// Positions in streams: asked for, granted and refused.
fn in_streams() -> Vec<Sample> {
    let key = |stream, key| ConflictKey { stream: StreamId(stream), key };
    let part = KeyHash(0xBEEF);
    let condition = Condition {
        snapshot: LogPos(30),
        reads: vec![key(9, part), key(11, KeyHash::ALL)].into(),
        writes: vec![key(9, part)].into(),
    };
    let group = |count, streams: &[u128], condition: Option<Condition>| TokenGroup {
        count,
        streams: streams.iter().copied().map(StreamId).collect(),
        condition: condition.map(Box::new),
    };
    let token = Token {
        groups: vec![group(2, &[9, 10], None), group(1, &[9], Some(condition)), group(3, &[], None)],
    };
    let append = Append {
        batch: BatchHead {
            client: ClientId(0xC11E_0001),
            number: BatchNo(3),
            request: RequestNo(10),
            after: LogPos(40),
        },
        table: Table::of_payloads([&b"first"[..], b"", b"third"]),
        groups: token.groups[..2].to_vec(),
    };
    let conflict = GroupGrant::Conflict { key: key(9, part), pos: LogPos(33) };
    let too_old = GroupGrant::TooOld { low_water: LogPos(32) };
    let answers = vec![granted(2, &[9, 10]), conflict.clone()];
    let appended = Appended { first: LogPos(40), count: 2, written: true, groups: answers };
    let grant = Grant { first: LogPos(40), groups: vec![granted(2, &[9, 10]), conflict, too_old] };
    let streams = vec![StreamId(9), StreamId(10)];
    let known = StreamTail { next: StreamPos(6), last: Some(LogPos(41)) };
    let ends =
        Tail { tail: Some(LogPos(45)), streams: vec![known, StreamTail::default()], ..Tail::default() };
    vec![
        sample("token_in_streams", head(), token, &[]),
        sample("append_in_streams", head(), append, &[b"first", b"", b"third"]),
        sample("appended_in_streams", head(), appended, &[]),
        sample("check_streams", head(), Check { streams, ..Check::default() }, &[]),
        sample("grant_in_streams", head(), grant, &[]),
        sample("tail_of_streams", head(), ends, &[]),
        sample("refusal_streams_unknown", head(), Refusal::StreamsUnknown, &[]),
    ]
}

/// The drives of a unit: told of, and changed.
fn drives() -> Vec<Sample> {
    let drive = |id, path: &str| UnitDrive {
        id: ithaca_chain::DriveId(id),
        link: 1,
        is_tail: false,
        is_stale: path.is_empty(),
        is_asleep: false,
        is_leaving: true,
        is_there: !path.is_empty(),
        segments: 16,
        free: 4,
        live: 12,
        data_bytes: 700 << 20,
        size_bytes: 1 << 30,
        path: path.to_owned(),
    };
    let first = UnitDrive { link: 0, is_tail: true, is_leaving: false, ..drive(0xA, "/mnt/a") };
    let listed = Drives { node: NodeId(2), drives: vec![first, drive(0xB, "/mnt/b"), drive(0xC, "")] };
    let paths = |paths: &[&str]| paths.iter().map(|path| path.to_string()).collect();
    let asked = |change| ChangeDrives { node: NodeId(2), wait_ms: 1000, change };
    let add = DriveChange::Add { paths: paths(&["/mnt/b", "/mnt/c"]), create_bytes: 1 << 30 };
    let mirror = DriveChange::Mirror { of: "/mnt/a".to_owned(), paths: paths(&["/mnt/d"]), create_bytes: 0 };
    let remove = DriveChange::Remove { paths: paths(&["/mnt/b", "/mnt/c"]) };
    let told = "/mnt/b: no drive of the unit, which has /mnt/a".to_owned();
    let refused = DrivesChanged::Refused { why: DriveRefusal::NoSuchDrive, told };
    vec![
        sample("get_drives", head(), GetDrives, &[]),
        sample("add_drives", head(), asked(add), &[]),
        sample("mirror_a_drive", head(), asked(mirror), &[]),
        sample("remove_drives", head(), asked(remove), &[]),
        sample("drives", head(), listed, &[]),
        sample("drives_changed", head(), DrivesChanged::Done, &[]),
        sample("drives_being_changed", head(), DrivesChanged::UnderWay { left: 12 }, &[]),
        sample("drives_not_changed", head(), refused, &[]),
    ]
}

fn ballot() -> Ballot {
    Ballot { round: 6, proposer: NodeId(2) }
}

fn record() -> Bytes {
    Bytes::from_static(b"a layout record")
}

/// What acceptors are asked.
fn questions() -> Vec<Sample> {
    vec![
        sample("prepare", head(), Prepare { epoch: Epoch(4), ballot: ballot() }, &[]),
        sample("accept", head(), Accept { ballot: ballot(), record: record() }, &[]),
        sample("learn", head(), Learn { invitation: Invitation::Founding, record: record() }, &[]),
        sample("lease", head(), Lease { epoch: Epoch(3), node: NodeId(2) }, &[]),
    ]
}

/// Answers of acceptors.
fn votes() -> Vec<Sample> {
    let found = Vote::Given { accepted: Some((ballot(), record())) };
    let promise = |vote, leases| Promise { vote, leases };
    let overtaken = Vote::Overtaken { promised: ballot() };
    let leases = LeasesLeft { nodes: [(NodeId(1), 202), (NodeId(3), 40)].into(), others_ms: 7 };
    vec![
        sample("promise", head(), promise(Vote::Given { accepted: None }, leases), &[]),
        sample("promise_with_a_layout", head(), promise(found, LeasesLeft::default()), &[]),
        sample("promise_overtaken", head(), promise(overtaken, LeasesLeft::default()), &[]),
        sample("accepted", head(), Accepted { vote: Vote::Given { accepted: None } }, &[]),
        sample("accepted_decided", head(), Accepted { vote: Vote::Decided { layout: record() } }, &[]),
        sample("learned", head(), Learned { epoch: Epoch(4) }, &[]),
        sample("cluster_changed", head(), ClusterChanged { epoch: Epoch(4) }, &[]),
        sample("leased", head(), Leased { granted: true }, &[]),
    ]
}

fn runs() -> Runs {
    let run = Run {
        first_key: 40,
        version: 3,
        kind: RunKind::Data,
        meta: meta().to_bytes(),
        table: Table::of_payloads([&b"first"[..], b"", b"third"]),
        data: Bytes::from_static(b"firstthird"),
    };
    let run_head = |addr, count, state| RunHead { addr: Addr(addr), count, state };
    Runs {
        runs: vec![
            run_head(38, 2, RunState::Trimmed),
            RunHead::of_run(&run),
            run_head(43, 1, RunState::Junk { epoch: Epoch(3) }),
            run_head(44, 1, RunState::Unwritten),
        ],
    }
}

fn replies() -> Vec<Sample> {
    let hello_ok = HelloOk {
        version: PROTOCOL_VERSION,
        cluster: ClusterId(0x1111_2222_3333_4444_5555_6666_7777_8888),
        node: NodeId(2),
        incarnation: Incarnation(4),
        entry_max_bytes: 1 << 20,
        write_max_bytes: 4 << 20,
        read_max_bytes: 4 << 20,
        run_max_count: 16_384,
        grant_max_count: 65_536,
    };
    let outcome = |addr, count, taken| Outcome { addr: Addr(addr), count, taken };
    let by = Taken::Data { client: ClientId(0xC11E_0002), request: RequestNo(80), stride: 1 };
    let taken = vec![outcome(40, 1, by), outcome(41, 1, Taken::Junk), outcome(42, 1, Taken::Trimmed)];
    let status = NodeStatus {
        node: NodeId(2),
        incarnation: Incarnation(4),
        roles: Roles::SEQUENCER.with(Roles::UNIT),
        offers: Roles::OFFERED,
        durability: Durability::Fsync,
        cpu_us: 1_500_000,
        rss_bytes: 80 << 20,
        uptime_ms: 60_000,
        tail: Some(LogPos(45)),
        watermark: Some(Addr(43)),
        counters: vec![("appends".to_owned(), 45)],
    };
    let bounds = ExtentBounds { first: Addr(38), watermark: Addr(43), end: Addr(45) };
    let tail = Tail { tail: Some(LogPos(45)), extents: vec![bounds], streams: Vec::new() };
    let push = Head { flags: FLAG_PUSH, ..head() };
    vec![
        sample("hello_ok", Head::new(RequestId(1), Epoch(3)), hello_ok, &[]),
        sample("grant", head(), Grant { first: LogPos(40), groups: vec![granted(16, &[])] }, &[]),
        sample("written", head(), Written::default(), &[]),
        sample("written_in_part", head(), Written { taken: taken.clone() }, &[]),
        sample("runs", head(), runs(), &[b"firstthird"]),
        sample("push", push, runs(), &[b"first", b"third"]),
        sample("end_of_subscription", Head { flags: FLAG_PUSH | FLAG_END, ..head() }, Runs::default(), &[]),
        sample("filled", head(), Filled { taken }, &[]),
        sample("trimmed", head(), Trimmed, &[]),
        sample("tail", head(), tail, &[]),
        sample("sealed", head(), Sealed { epoch: Epoch(3), highest: vec![Some(Addr(44)), None] }, &[]),
        sample("layout_record", head(), LayoutRecord { record: record() }, &[]),
        sample("node_status", head(), status, &[]),
        sample("trims", head(), Trims { ranges: vec![(40..42).into(), (50..51).into()] }, &[]),
        sample("beaten", head(), Beaten(account(NodeState::Leaving)), &[]),
        sample(
            "appended",
            head(),
            Appended { first: LogPos(40), count: 3, written: true, groups: Vec::new() },
            &[],
        ),
        sample("refusal_forgotten", head(), Refusal::Forgotten { from: LogPos(90) }, &[]),
        sample("refusal_not_relayed", head(), Refusal::NotRelayed, &[]),
        sample("refusal_no_lease", head(), Refusal::NoLease { epoch: Epoch(3) }, &[]),
        sample("refusal_not_changed", head(), Refusal::NotChanged { epoch: Epoch(3) }, &[]),
        sample("refusal_too_few_replicas", head(), Refusal::TooFewReplicas { kept: 1, needed: 2 }, &[]),
        sample("refusal_sealed", head(), Refusal::Sealed { sealed: Epoch(3) }, &[]),
        sample("refusal_too_sparse", head(), Refusal::TooSparse { addr: Addr(1 << 40), limit: 65_536 }, &[]),
        sample(
            "refusal_wrong_cluster",
            head(),
            Refusal::WrongCluster { cluster: ClusterId(0xAAAA << 64 | 0xBBBB) },
            &[],
        ),
    ]
}

/// All of them, requests before replies.
fn samples() -> Vec<Sample> {
    let asked = requests().into_iter().chain(questions()).chain(stream_reads());
    let told = replies().into_iter().chain(votes()).chain(stream_replies());
    asked.chain(told).chain(in_streams()).chain(drives()).collect()
}

/// Decodes the one frame in `bytes` as whatever it is; what comes out is encoded again.
fn again(bytes: &[u8]) -> Result<BytesMut, MessageError> {
    let mut buf = BytesMut::from(bytes);
    let frame = next_frame(&mut buf).expect("a frame").expect("a whole frame");
    assert!(buf.is_empty(), "nothing is left");
    let mut out = BytesMut::new();
    match Request::decode(&frame) {
        Ok(request) => request.encode_head(&mut out, frame.head, frame.data.len()),
        Err(_) => Reply::decode(&frame)?.encode_head(&mut out, frame.head, frame.data.len()),
    }
    out.extend_from_slice(&frame.data);
    Ok(out)
}

#[test]
fn every_message_has_a_golden_frame_and_survives_a_round_trip() {
    let samples: Vec<Sample> = samples();
    let mut text =
        String::from("One frame of each message, in hexadecimal. docs/protocol.md explains them.\n");
    for Sample { name, bytes } in &samples {
        text.push_str(&format!("\n{name}\n{}", ithaca_env::real::golden::hex(bytes)));
        assert_eq!(again(bytes).expect(name), bytes, "{name}");
    }
    ithaca_env::real::golden::check(
        concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/frames.txt"),
        &text,
    );
    let covered =
        |kind: &&Kind| samples.iter().any(|sample| sample.bytes[8..10] == (**kind as u16).to_le_bytes());
    assert_eq!(Kind::ALL.iter().filter(|kind| !covered(kind)).collect::<Vec<_>>(), Vec::<&Kind>::new());
}

#[test]
fn the_worked_example_in_the_documentation_is_what_is_sent() {
    let text = include_str!("../../../../docs/protocol.md");
    for sample in
        requests().iter().chain(&replies()).filter(|sample| ["write", "written"].contains(&sample.name))
    {
        let shown: Vec<String> = sample.bytes.chunks(8).map(|line| format!("{:02x?}", line)).collect();
        for line in shown {
            let line = line.trim_matches(['[', ']']).replace(", ", " ");
            assert!(text.contains(&line), "{}: docs/protocol.md lacks the bytes {line}", sample.name);
        }
    }
}

#[test]
fn a_write_head_made_without_a_message_is_the_same_frame() {
    let payloads = [&b"first"[..], b"", b"third"];
    let table = Table::of_payloads(payloads);
    let mut direct = BytesMut::new();
    let entries: Vec<_> = table.entries().collect();
    let data_len = encode_write_head(&mut direct, head(), Addr(40), &meta(), entries.into_iter());
    assert_eq!(data_len, 10);
    let write = Write { addr: Addr(40), meta: meta().to_bytes(), table };
    let mut plain = BytesMut::new();
    encode_head(&mut plain, head(), &write, data_len);
    assert_eq!(direct, plain);
}

#[test]
fn a_frame_that_is_not_all_there_is_waited_for() {
    for Sample { name, bytes } in samples() {
        for len in 0..bytes.len() {
            let mut part = BytesMut::from(&bytes[..len]);
            assert_eq!(next_frame(&mut part), Ok(None), "{name} cut at {len}");
            assert_eq!(part.len(), len, "nothing is taken");
        }
    }
}

#[test]
fn frames_that_arrive_together_come_out_one_by_one_with_their_own_data() {
    let mut buf = BytesMut::new();
    for sample in replies() {
        buf.extend_from_slice(&sample.bytes);
    }
    for sample in replies() {
        let frame = next_frame(&mut buf).expect("a frame").expect("whole");
        assert_eq!(frame.body.len() + frame.data.len() + HEADER_BYTES, sample.bytes.len(), "{}", sample.name);
    }
    assert_eq!(next_frame(&mut buf), Ok(None));
}

#[test]
fn a_flipped_bit_in_header_or_body_never_passes() {
    for Sample { name, bytes } in samples() {
        let body_len = u32::from_le_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]) as usize;
        for bit in 0..(HEADER_BYTES + body_len) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            // The length of the frame has no checksum: a longer one is waited for, a shorter one fails in its table.
            if let Ok(Some(frame)) = next_frame(&mut damaged) {
                assert!(bit < 32, "{name}: bit {bit} passed the checksum");
                assert!(Request::decode(&frame).is_err() && Reply::decode(&frame).is_err(), "{name}: {bit}");
            }
        }
    }
}

#[test]
fn a_body_that_is_cut_or_damaged_under_a_right_checksum_is_refused_or_decoded_never_a_panic() {
    let mut random = Random::new(1);
    let samples: Vec<Sample> = samples();
    for round in 0..20_000 {
        let sample = &samples[round % samples.len()];
        let mut buf = sample.bytes.clone();
        let mut frame = next_frame(&mut buf).expect("a frame").expect("whole");
        let mut body = frame.body.to_vec();
        match random.next_u64() % 3 {
            0 => body.truncate(random.next_u64() as usize % (body.len() + 1)),
            1 => body.extend_from_slice(&random.next_u64().to_le_bytes()),
            _ if body.is_empty() => {}
            _ => {
                let at = random.next_u64() as usize % body.len();
                body[at] = random.next_u64() as u8;
            }
        }
        let same = body == frame.body;
        frame.body = Bytes::from(body);
        let request = Request::decode(&frame);
        let reply = Reply::decode(&frame);
        let whole = sample.bytes.len() - HEADER_BYTES - frame.data.len();
        if sample.name == "hello" && frame.body.len() > whole {
            // Of a later version, it may be: its client is to be told which ones there are.
            assert_eq!(request, Ok(Request::Hello(hello())));
            continue;
        }
        let cut = frame.body.len() != whole;
        assert!(!cut || same || (request.is_err() && reply.is_err()), "{}: {:?}", sample.name, frame.body);
    }
}

#[test]
fn random_bytes_never_panic_and_are_never_kept_without_bound() {
    let mut random = Random::new(2);
    for _ in 0..20_000 {
        let len = random.next_u64() as usize % 96;
        let mut bytes: BytesMut = (0..len).map(|_| random.next_u64() as u8).collect();
        // Small lengths, so that some frames are whole.
        if len >= 16 && random.next_u64().is_multiple_of(2) {
            bytes[0..4].copy_from_slice(&((len - 16) as u32 / 2).to_le_bytes());
            bytes[12..16].copy_from_slice(&((len - 16) as u32 / 4).to_le_bytes());
        }
        let _ = next_frame(&mut bytes);
        assert!(bytes.capacity() <= HEADER_BYTES + limits::FRAME_MAX_BYTES + 4096);
        for kind in Kind::ALL {
            let frame =
                Frame { kind: *kind as u16, head: head(), body: bytes.clone().freeze(), data: Bytes::new() };
            let _ = (Request::decode(&frame), Reply::decode(&frame));
        }
    }
}

#[test]
fn a_frame_over_its_limits_is_refused_before_it_is_received() {
    let header = |frame_len: u32, body_len: u32| {
        let mut bytes = BytesMut::zeroed(HEADER_BYTES);
        bytes[0..4].copy_from_slice(&frame_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&body_len.to_le_bytes());
        next_frame(&mut bytes)
    };
    assert!(matches!(header(u32::MAX, 0), Err(FrameError::FrameTooLong { .. })));
    assert!(matches!(header(10, 11), Err(FrameError::BodyTooLong { found: 11, limit: 10 })));
    assert!(matches!(
        header(limits::FRAME_MAX_BYTES as u32, limits::BODY_MAX_BYTES as u32 + 1),
        Err(FrameError::BodyTooLong { .. })
    ));
    assert!(matches!(header(limits::FRAME_MAX_BYTES as u32, 0), Err(FrameError::DataTooLong { .. })));
}

#[test]
fn runs_find_their_parts_of_the_data() {
    let parts: Vec<(u64, Bytes)> =
        runs().with_data(Bytes::from_static(b"firstthird")).map(|(head, data)| (head.addr.0, data)).collect();
    assert_eq!(parts[1], (40, Bytes::from_static(b"firstthird")));
    assert!(parts.iter().all(|(addr, data)| *addr == 40 || data.is_empty()));
}

#[test]
fn a_reply_of_entries_as_small_as_can_be_fits_in_a_frame() {
    // Empty entries have no data, but a table: a limit on data alone would let the body grow without bound.
    let payloads = vec![b""; limits::RUN_MAX_COUNT];
    let mut run = Run {
        first_key: 0,
        version: 1,
        kind: RunKind::Data,
        meta: Bytes::from(vec![0; limits::META_MAX_BYTES]),
        table: Table::of_payloads(&payloads),
        data: Bytes::new(),
    };
    let mut room = limits::READ_MAX_BYTES;
    let mut reply = Runs::default();
    loop {
        let count = entries_within(&run.view(), room);
        let head = RunHead::of_run(&run.slice(run.first_key..run.first_key + count as u64));
        room = room.saturating_sub(head.body_bytes());
        reply.runs.push(head);
        if count < run.table.count() || room == 0 {
            break;
        }
        run.first_key += count as u64;
    }
    let mut frame = BytesMut::new();
    encode_message(&mut frame, head(), &reply);
    assert!(frame.len() > limits::READ_MAX_BYTES - 16, "the limit is used");
    assert_eq!(again(&frame).expect("it decodes"), frame);
}
