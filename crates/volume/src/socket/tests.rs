//! Frames and records byte by byte, and the order of a connection's requests.

use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use ithaca_chain::ChainId;
use ithaca_env::Env;
use ithaca_env::drive::OpenDrive;
use ithaca_env::net::Conn;
use ithaca_env::real::golden;
use ithaca_env::sim::{Random, Sim};

use super::client::Client;
use super::frame::{self, FrameError, Front, HEAD_BYTES, Head, put_head};
use super::limits::{BODY_MAX_BYTES, MEMORY_MAX_BYTES, REQUESTS_MAX, REQUESTS_MAX_BYTES};
use super::refusal::{Refusal, Status};
use super::reply::{Reply, Scrub};
use super::request::{About, Request, kind};
use super::server::{Server, ServerOptions};
use super::session::{Next, Session};
use super::summary::{DriveState, DriveSummary, Summary};
use crate::{
    Durability, Heir, Isolation, Planted, Region, Retention, TxHandle, Version, Volume, VolumeOptions,
};

const HANDLE: TxHandle = TxHandle(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);

fn frame(head: Head, body: &[u8], data: &[u8]) -> Vec<u8> {
    let mut out = BytesMut::new();
    put_head(&mut out, head, &[body, data]);
    out.extend_from_slice(body);
    out.extend_from_slice(data);
    out.to_vec()
}

fn asked(id: u64, tx: u32, request: &Request) -> Vec<u8> {
    let mut body = BytesMut::new();
    request.encode(&mut body);
    frame(Head { kind: request.kind(), id, tx, status: 0 }, &body, &request.data())
}

fn answered(id: u64, tx: u32, kind: u16, reply: &Reply) -> Vec<u8> {
    let mut body = BytesMut::new();
    reply.encode(&mut body);
    frame(Head { kind, id, tx, status: 0 }, &body, &reply.data())
}

fn data(len: usize) -> Bytes {
    (0..len).map(|at| at as u8).collect::<Vec<u8>>().into()
}

/// Every request, with the transaction that it may be about.
fn requests() -> Vec<(u32, Request)> {
    let stable = Durability::Stable;
    let acknowledged = Durability::Acknowledged;
    vec![
        (0, Request::Info),
        (1, Request::Begin { isolation: None, durability: stable }),
        (2, Request::Begin { isolation: Some(Isolation::Snapshot), durability: acknowledged }),
        (1, Request::Nest),
        (1, Request::Commit),
        (1, Request::Abort),
        (1, Request::Release(Heir::User(0))),
        (1, Request::Release(Heir::Anyone)),
        (3, Request::TakeOver(HANDLE)),
        (0, Request::Read { blocks: 5..7 }),
        (1, Request::Write { first_block: 5, data: data(4096), durability: stable }),
        (1, Request::ReadPart { block: 5, bytes: 16..48 }),
        (1, Request::WritePart { block: 5, at: 16, data: data(32) }),
        (1, Request::MarkAccessed { block: 5, bytes: 0..16 }),
        (0, Request::PleaseCache { block: 5 }),
        (0, Request::Flush),
        (0, Request::Discard { blocks: 8..1 << 33, durability: acknowledged }),
        (0, Request::Snapshot("before".to_owned())),
        (0, Request::Snapshots),
        (0, Request::Forget("über".to_owned())),
        (0, Request::Scrub),
        (0, Request::Scrubbed),
        (0, Request::OpenRegion("mail".to_owned())),
        (0, Request::Regions),
        (0, Request::CreateRegion { name: "mail".to_owned(), blocks: 1 << 18 }),
        (0, Request::DeleteRegion("mail".to_owned())),
        (0, Request::ShareMemory),
        (1, Request::ReadInto { blocks: 5..7, slot: 3 }),
        (0, Request::WriteFrom { blocks: 5..9, slot: 1, durability: acknowledged }),
    ]
}

fn summary() -> Summary {
    Summary {
        id: ChainId([7; 16]),
        blocks: 1 << 20,
        fragment_bytes: 16,
        isolation: Isolation::Snapshot,
        retention: Retention { versions: 9, age: Duration::from_secs(60) },
        version: Version(0x0102_0304),
        floor: Version(5),
        data_blocks: 77,
        versions: 3,
        transactions: 2,
        segment_bytes: 4 << 20,
        free_bytes: 1 << 30,
        drives: vec![DriveSummary {
            drive: "/disk/volume.chain".to_owned(),
            state: DriveState::Rebuilding { segments: 31 },
            segments: 95,
            segments_free: 94,
        }],
    }
}

/// Answers of every shape, and to which kind of request.
fn replies() -> Vec<(u16, Reply)> {
    let damage = vec!["segment 3, 4096 bytes at 8192: the data of blocks 3 to 3".to_owned()];
    let scrub = Scrub { is_running: true, segments: 12, repaired: 1, damaged: 1, damage };
    vec![
        (kind::NEST, Reply::Done),
        (kind::TAKE_OVER, Reply::Entered { snapshot: Version(0x1122), depth: 1 }),
        (kind::COMMIT, Reply::Version(Version(0x1122))),
        (kind::RELEASE, Reply::Handle(HANDLE)),
        (kind::READ_INTO, Reply::Done),
        (kind::WRITE_FROM, Reply::Version(Version(0x1122))),
        (kind::READ, Reply::Data(data(64))),
        (kind::INFO, Reply::Info(summary())),
        (
            kind::SNAPSHOTS,
            Reply::Snapshots(vec![("before".to_owned(), Version(7)), ("über".to_owned(), Version(9))]),
        ),
        (kind::SCRUBBED, Reply::Scrub(scrub)),
        (kind::REGIONS, Reply::Regions(vec![Region { name: "mail".to_owned(), blocks: 5..9 }])),
    ]
}

fn conflict() -> Refusal {
    let conflict = Some((5, 16..48, Version(9)));
    Refusal {
        conflict,
        ..Refusal::new(Status::Conflict, "block 5, bytes 16 to 48, was written by version 9 meanwhile")
    }
}

fn refused(refusal: &Refusal) -> Vec<u8> {
    let mut body = BytesMut::new();
    refusal.encode(&mut body);
    frame(Head { kind: kind::COMMIT, id: 9, tx: 1, status: refusal.status as u32 }, &body, &[])
}

/// One frame that is all of these bytes.
fn whole(bytes: &[u8]) -> (Head, Bytes) {
    let mut received = BytesMut::from(bytes);
    match frame::take(&mut received) {
        Ok(Front::Frame(head, body)) if received.is_empty() => (head, body),
        other => panic!("{other:?}"),
    }
}

#[test]
fn frames_have_golden_bytes() {
    let hex = |bytes: &[u8]| {
        let shown = if bytes.len() > 200 { &bytes[..96] } else { bytes };
        golden::hex(shown)
    };
    let mut text = "Frames of a volume's socket in hexadecimal, of long ones the first 96 bytes; docs/protocol/socket.md.\n".to_owned();
    for (nth, (tx, request)) in requests().iter().enumerate() {
        let bytes = asked(nth as u64 + 1, *tx, request);
        text += &format!(
            "\nrequest {} of transaction {tx}, {} bytes\n{}",
            request.kind(),
            bytes.len(),
            hex(&bytes)
        );
    }
    for (kind, reply) in replies() {
        let bytes = answered(1, 1, kind, &reply);
        text += &format!("\nanswer to {kind}, {} bytes\n{}", bytes.len(), hex(&bytes));
    }
    text += &format!("\nrefusal\n{}", hex(&refused(&conflict())));
    golden::check(concat!(env!("CARGO_MANIFEST_DIR"), "/testdata/golden/socket_frames.txt"), &text);
}

#[test]
fn requests_answers_and_refusals_are_what_they_were() {
    for (nth, (tx, request)) in requests().into_iter().enumerate() {
        let (head, body) = whole(&asked(nth as u64, tx, &request));
        assert_eq!((head.kind, head.id, head.tx), (request.kind(), nth as u64, tx));
        assert_eq!(Request::decode(head.kind, body), Ok(request));
    }
    for (kind, reply) in replies() {
        let (head, body) = whole(&answered(3, 4, kind, &reply));
        assert_eq!(Reply::decode(head.kind, body), Ok(reply));
    }
    let (head, body) = whole(&refused(&conflict()));
    assert_eq!(Refusal::decode(head.status, &body), Ok(conflict()));
    assert!(Refusal::decode(17, &body).is_err());
}

#[test]
fn a_frame_that_is_cut_is_waited_for_and_a_harmed_one_is_never_taken_for_another() {
    let all = requests().into_iter().map(|(tx, request)| asked(1, tx, &request));
    for bytes in all.chain([refused(&conflict())]) {
        for len in 0..bytes.len() {
            let missing = frame::take(&mut BytesMut::from(&bytes[..len]));
            assert!(matches!(missing, Ok(Front::Missing(1..))), "{len} bytes: {missing:?}");
        }
        for bit in 0..bytes.len().min(HEAD_BYTES + 64) * 8 {
            let mut harmed = bytes.clone();
            harmed[bit / 8] ^= 1 << (bit % 8);
            // A longer length waits for what never comes.
            let taken = frame::take(&mut BytesMut::from(&harmed[..]));
            assert!(!matches!(taken, Ok(Front::Frame(..))), "bit {bit}");
        }
    }
}

#[test]
fn what_is_no_frame_says_what_it_is() {
    let error = |bytes: &[u8]| frame::take(&mut BytesMut::from(bytes)).expect_err("no frame");
    assert_eq!(error(b"G"), FrameError::Magic { found: *b"GTvs" });
    let mut newer = asked(1, 0, &Request::Info);
    newer[4] = 2;
    assert_eq!(error(&newer), FrameError::Version { found: 2 });
    let mut long = asked(1, 0, &Request::Info);
    long[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(error(&long), FrameError::Length { found: u32::MAX as usize, max: BODY_MAX_BYTES });
}

#[test]
fn senseless_bodies_are_refused_and_nothing_panics() {
    let mut random = Random::new(1);
    for round in 0..200_000_u32 {
        let len = random.below(80) as usize;
        let body: Bytes = (0..len).map(|_| random.next_u64() as u8).collect::<Vec<u8>>().into();
        let kind = (round % 29) as u16;
        if let Ok(request) = Request::decode(kind, body.clone()) {
            // What decodes is what would be encoded, but for who is meant by a user.
            assert_eq!(whole(&asked(1, 1, &request)).1, body, "{request:?}");
        }
        let _ = Reply::decode(kind, body.clone());
        let _ = Refusal::decode(u32::from(kind), &body);
    }
}

#[test]
fn senseless_fields_are_refused_by_name() {
    let words = |kind, body: &[u8]| {
        Request::decode(kind, Bytes::copy_from_slice(body)).expect_err("senseless").to_string()
    };
    assert!(words(99, b"").starts_with("kind: found 0x63"));
    assert!(words(kind::BEGIN, &[3, 0]).starts_with("isolation"));
    assert!(words(kind::READ, &[0; 12]).starts_with("blocks: found 0x0"));
    assert!(words(kind::READ, &[&[0; 8][..], &1025_u32.to_le_bytes()].concat()).contains("at most 1024"));
    assert!(words(kind::WRITE, &[0; 9 + 100]).contains("whole blocks"));
    assert!(words(kind::WRITE, &[0; 9]).starts_with("blocks: found 0x0"));
    assert!(words(kind::READ, &[&u64::MAX.to_le_bytes()[..], &[2, 0, 0, 0]].concat()).contains("below 2^64"));
    assert!(
        words(kind::MARK_ACCESSED, &[&[0; 8][..], &[8, 0, 0, 0, 8, 0, 0, 0]].concat()).starts_with("end")
    );
    assert!(
        words(kind::WRITE_PART, &[&[0; 8][..], &4096_u32.to_le_bytes(), b"x"].concat())
            .contains("end in the block")
    );
    assert!(words(kind::SNAPSHOT, &[b'x'; 65]).contains("1 to 64"));
    assert!(words(kind::COMMIT, b"x").contains("1 bytes after"));
}

fn session() -> Session<usize> {
    Session::new(Planted::default())
}

/// The ids of requests that begin when these bytes come in pieces, and what is refused.
fn begun(session: &mut Session<usize>, received: &mut BytesMut) -> Vec<u64> {
    let mut ids = Vec::new();
    loop {
        match session.next(received, Some).expect("frames") {
            Next::Begin(asked) => ids.push(asked.head.id),
            Next::Read(_) | Next::Room(_) | Next::Full => return ids,
            Next::Refuse(head, refusal) => panic!("{head:?}: {refusal}"),
        }
    }
}

/// A request of this transaction is carried out. The id of the one that may begin then.
fn carried_out(session: &mut Session<usize>, tx: u32, cost_bytes: usize) -> Option<u64> {
    let next = session.turn(tx);
    session.done(cost_bytes);
    next.map(|asked| asked.head.id)
}

#[test]
fn requests_of_one_transaction_wait_for_each_other_and_for_nobody_else() {
    let mut session = session();
    let commit = |id, tx| asked(id, tx, &Request::Commit);
    let bytes =
        [commit(1, 1), commit(2, 2), commit(3, 1), asked(4, 0, &Request::Flush), commit(5, 1)].concat();
    assert_eq!(begun(&mut session, &mut BytesMut::from(&bytes[..])), [1, 2, 4]);
    assert_eq!(carried_out(&mut session, 2, 0), None);
    assert_eq!(carried_out(&mut session, 0, 0), None);
    assert_eq!(carried_out(&mut session, 1, 0), Some(3));
    assert_eq!(carried_out(&mut session, 1, 0), Some(5));
    assert_eq!((carried_out(&mut session, 1, 0), session.taken()), (None, 0));
}

#[test]
fn what_waits_when_the_connection_ends_never_begins() {
    let mut session = session();
    let read = |id| asked(id, 1, &Request::Read { blocks: 0..9 });
    let bytes = [read(1), read(2), read(3)].concat();
    assert_eq!(begun(&mut session, &mut BytesMut::from(&bytes[..])), [1]);
    session.end();
    assert_eq!(session.taken(), 1);
    assert_eq!((carried_out(&mut session, 1, 9 * 4096), session.taken()), (None, 0));
}

#[test]
fn data_is_taken_in_and_read_only_when_there_is_room_for_it() {
    let write =
        asked(1, 1, &Request::Write { first_block: 0, data: data(8192), durability: Durability::Stable });
    let read = asked(2, 0, &Request::Read { blocks: 0..9 });
    let rest = [&write[HEAD_BYTES..], &read, &asked(3, 1, &Request::Commit)].concat();
    let mut session = session();
    // Of the head alone it is known how much will come.
    let mut received = BytesMut::from(&write[..HEAD_BYTES]);
    let body = write.len() - HEAD_BYTES;
    let next = |session: &mut Session<usize>, received: &mut BytesMut| {
        let mut asked_for = Vec::new();
        let next = session.next(received, |bytes| {
            asked_for.push(bytes);
            None
        });
        (next.expect("frames"), asked_for)
    };
    assert_eq!(next(&mut session, &mut received), (Next::Room(body), vec![body]));
    session.give_room(7);
    assert_eq!(next(&mut session, &mut received), (Next::Read(body), vec![]));
    received.extend_from_slice(&rest);
    match next(&mut session, &mut received) {
        (Next::Begin(asked), _) => assert_eq!((asked.head.id, asked.room), (1, Some(7))),
        other => panic!("{other:?}"),
    }
    assert_eq!(next(&mut session, &mut received), (Next::Room(9 * 4096), vec![9 * 4096]));
    session.give_room(8);
    match next(&mut session, &mut received) {
        (Next::Begin(asked), _) => assert_eq!((asked.head.id, asked.room), (2, Some(8))),
        other => panic!("{other:?}"),
    }
    // A commit needs none.
    assert_eq!(next(&mut session, &mut received), (Next::Read(HEAD_BYTES), vec![]));
    assert_eq!(session.turn(1).map(|asked| (asked.head.id, asked.room)), Some((3, None)));
}

#[test]
fn no_more_is_taken_than_may_be_under_way() {
    let many = |request: Request, count: usize| {
        let bytes: Vec<u8> = (0..count as u64).flat_map(|id| asked(id, 0, &request)).collect();
        BytesMut::from(&bytes[..])
    };
    let mut session = session();
    let mut received = many(Request::Flush, REQUESTS_MAX + 7);
    assert_eq!(begun(&mut session, &mut received).len(), REQUESTS_MAX);
    session.done(0);
    assert_eq!(begun(&mut session, &mut received).len(), 1);
    let mut session = self::session();
    let large = Request::Read { blocks: 0..1024 };
    let taken = begun(&mut session, &mut many(large.clone(), REQUESTS_MAX)).len();
    assert_eq!(taken, REQUESTS_MAX_BYTES.div_ceil(large.cost_bytes()));
}

#[test]
fn a_request_that_names_the_wrong_kind_of_transaction_is_refused_and_the_next_one_taken() {
    let stray = Head { kind: 77, id: 3, ..Head::default() };
    let with_status = Head { kind: kind::FLUSH, id: 4, tx: 0, status: 1 };
    let bytes = [
        asked(1, 0, &Request::Commit),
        asked(2, 1, &Request::Flush),
        frame(stray, b"", b""),
        frame(with_status, b"", b""),
        frame(Head { kind: kind::READ, id: 5, ..Head::default() }, b"x", b""),
        asked(6, 0, &Request::Flush),
    ];
    let mut received = BytesMut::from(&bytes.concat()[..]);
    let mut session = session();
    let words = [
        "needs a transaction",
        "about no transaction",
        "no request 77",
        "with status 1",
        "first block: needs",
    ];
    for (nth, expected) in words.iter().enumerate() {
        match session.next(&mut received, Some).expect("frames") {
            Next::Refuse(head, refusal) => {
                assert_eq!((head.id, refusal.status), (nth as u64 + 1, Status::Request));
                assert!(refusal.words.contains(expected), "{refusal}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(begun(&mut session, &mut received), [6]);
}

/// Requests of every kind, in any order and for any transaction, all of which decode.
fn random_request(random: &mut Random) -> (u32, Request) {
    let all = requests();
    let (_, request) = all[random.below(all.len() as u64) as usize].clone();
    let about_none = matches!(Request::about(request.kind()), Some(About::None));
    let either = matches!(Request::about(request.kind()), Some(About::Either)) && random.percent(30);
    let tx = if about_none || either { 0 } else { 1 + random.below(3) as u32 };
    let blocks = random.below(70);
    let request = match request {
        Request::Read { .. } => Request::Read { blocks: blocks..blocks + 1 + random.below(9) },
        Request::Discard { durability, .. } => Request::Discard { blocks: blocks..blocks + 5, durability },
        Request::ReadInto { .. } => {
            Request::ReadInto { blocks: blocks..blocks + 1 + random.below(9), slot: random.below(20) as u32 }
        }
        Request::WriteFrom { durability, .. } => {
            let slot = if random.percent(10) { u32::MAX } else { random.below(20) as u32 };
            Request::WriteFrom { blocks: blocks..blocks + 1 + random.below(9), slot, durability }
        }
        Request::Snapshot(_) => Request::Snapshot(format!("s{}", random.below(4))),
        Request::Forget(_) => Request::Forget(format!("s{}", random.below(4))),
        other => other,
    };
    (tx, request)
}

#[test]
fn whatever_is_asked_in_whatever_order_is_answered_once_and_leaves_nothing() {
    let sim = Sim::new(65);
    let machine = sim.process("machine", [10, 0, 0, 1].into());
    let env = sim.env(machine);
    sim.block_on(machine, async move {
        let path = Path::new("socket");
        let (volume, server) = served(&env).await;
        for round in 0..60 {
            let mut random = Random::new(round);
            let mut conn = env.connect_local(path).await.expect("it listens");
            let count = 1 + random.below(100);
            // Some share memory, of some size, and some change it meanwhile, or have left it behind.
            let memory = env.share_memory(random.below(20) as usize * 4096).expect("there is some");
            if random.percent(80) {
                conn.writer.pass(memory.1);
                conn.writer.push(|out| out.extend_from_slice(&asked(0, 0, &Request::ShareMemory)));
            }
            for id in 1..=count {
                let (tx, request) = random_request(&mut random);
                conn.writer.push(|out| out.extend_from_slice(&asked(id, tx, &request)));
            }
            // Half of the clients go away in the middle of it.
            let awaited = if round % 2 == 0 { count } else { random.below(count) };
            let (mut received, mut answered) = (BytesMut::new(), std::collections::BTreeSet::new());
            while (answered.len() as u64) < awaited {
                match frame::take(&mut received).expect("frames") {
                    // Of memory it is asked with id 0.
                    Front::Frame(head, _) if head.id > 0 => {
                        assert!(answered.insert(head.id), "{} twice", head.id)
                    }
                    Front::Frame(..) => {}
                    Front::Missing(_) => assert!(conn.reader.read(&mut received).await.expect("open") > 0),
                }
            }
        }
        // Longer than a released one waits.
        env.sleep(Duration::from_secs(40)).await;
        assert_eq!((server.connections(), volume.info().transactions), (0, 0));
        volume.read(0, 64).await.expect("no damage");
        server.stop().await;
    });
}

/// A served volume of 64 blocks in a simulation, and a connection to it.
async fn served(env: &Env) -> (Volume, Server) {
    let open = OpenDrive { path: "volume".into(), create_bytes: Some(64 << 10), read_only: false };
    let drive = env.open_drive(open).await.expect("a drive");
    let mut options = VolumeOptions::new(64);
    let chain = &mut options.settings.chain;
    (chain.segment_bytes, chain.grow_bytes, chain.capacity_bytes) = (256 << 10, 512 << 10, 8 << 20);
    let volume = Volume::create(env, vec![drive], options).await.expect("created");
    let listener = env.listen_local(Path::new("socket")).expect("a free name");
    let server = Server::start(env, listener, volume.clone(), ServerOptions::default());
    (volume, server)
}

/// Asks one thing. Returns the status, and the words of a refusal.
async fn ask(conn: &mut Conn, request: &Request) -> (u32, String) {
    conn.writer.push(|out| out.extend_from_slice(&asked(7, 0, request)));
    let mut received = BytesMut::new();
    loop {
        match frame::take(&mut received).expect("frames") {
            Front::Frame(Head { id: 7, status: 0, .. }, _) => return (0, String::new()),
            Front::Frame(head, body) => {
                let refusal = Refusal::decode(head.status, &body).expect("a refusal");
                return (head.status, refusal.words);
            }
            Front::Missing(_) => assert!(conn.reader.read(&mut received).await.expect("open") > 0),
        }
    }
}

#[test]
fn memory_that_is_not_there_or_too_large_and_slots_outside_of_it_are_refused_and_the_connection_goes_on() {
    let sim = Sim::new(66);
    let machine = sim.process("machine", [10, 0, 0, 1].into());
    let env = sim.env(machine);
    sim.block_on(machine, async move {
        let (_volume, server) = served(&env).await;
        let read = |slot, blocks| Request::ReadInto { blocks, slot };
        let mut conn = env.connect_local(Path::new("socket")).await.expect("it listens");
        let none = (2, "no memory came with the first bytes of the connection".to_owned());
        assert_eq!(ask(&mut conn, &Request::ShareMemory).await, none);
        assert_eq!(ask(&mut conn, &read(0, 0..1)).await, (2, "there is no memory".to_owned()));
        let mut conn = env.connect_local(Path::new("socket")).await.expect("it listens");
        conn.writer.pass(env.share_memory(MEMORY_MAX_BYTES + 4096).expect("there is some").1);
        let (status, words) = ask(&mut conn, &Request::ShareMemory).await;
        assert!(status == 2 && words.contains("at most 67108864") && !words.contains('\n'), "{words}");
        assert_eq!(ask(&mut conn, &Request::Flush).await.0, 0);
        let mut conn = env.connect_local(Path::new("socket")).await.expect("it listens");
        conn.writer.pass(env.share_memory(4 * 4096).expect("there is some").1);
        assert_eq!(ask(&mut conn, &Request::ShareMemory).await.0, 0);
        assert_eq!(ask(&mut conn, &Request::ShareMemory).await, (2, "there is memory already".to_owned()));
        assert_eq!(ask(&mut conn, &read(3, 0..1)).await.0, 0, "the last slot");
        assert_eq!(ask(&mut conn, &read(0, 0..5)).await, (11, "slots 0 to 4, of 4".to_owned()));
        assert_eq!(ask(&mut conn, &read(4, 0..1)).await, (11, "slots 4 to 4, of 4".to_owned()));
        let last = Request::WriteFrom { blocks: 0..2, slot: u32::MAX, durability: Durability::Stable };
        assert_eq!(ask(&mut conn, &last).await, (11, "slots 4294967295 to 4294967296, of 4".to_owned()));
        assert_eq!(ask(&mut conn, &read(0, 63..65)).await.0, 11, "blocks that there are not");
        drop(conn);
        server.stop().await;
    });
}

#[test]
fn a_server_that_knows_nothing_of_memory_is_served_through_the_socket() {
    let sim = Sim::new(67);
    let machine = sim.process("machine", [10, 0, 0, 1].into());
    let env = sim.env(machine);
    sim.block_on(machine, async move {
        let listener = env.listen_local(Path::new("socket")).expect("a free name");
        let older = env.spawn(async move {
            let mut conn = listener.accept().await.expect("one came");
            let (mut received, mut kinds) = (BytesMut::new(), Vec::new());
            while kinds.len() < 3 {
                while let Front::Frame(head, _) = frame::take(&mut received).expect("frames") {
                    kinds.push(head.kind);
                    let unknown = Refusal::new(Status::Request, "there is no request 25");
                    let mut refused = BytesMut::new();
                    unknown.encode(&mut refused);
                    let reply = match head.kind {
                        kind::SHARE_MEMORY => frame(Head { status: 2, ..head }, &refused, b""),
                        _ => answered(head.id, head.tx, head.kind, &Reply::Data(data(4096))),
                    };
                    conn.writer.push(|out| out.extend_from_slice(&reply));
                }
                if kinds.len() < 3 {
                    assert!(conn.reader.read(&mut received).await.expect("open") > 0);
                }
            }
            (kinds, conn)
        });
        let client = Client::connect(&env, Path::new("socket")).await.expect("it listens");
        for _ in 0..2 {
            assert_eq!(client.read(0, 1).await, Ok(data(4096)));
        }
        let (kinds, _) = older.join().await.expect("it ends");
        assert_eq!(kinds, [kind::SHARE_MEMORY, kind::READ, kind::READ]);
    });
}
