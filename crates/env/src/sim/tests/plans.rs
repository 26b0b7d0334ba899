//! Whole runs from plans: a process that keeps numbers on a drive for a client, under every kind of fault.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use super::{created, machine};
use crate::drive::{Drive, DriveError, Durability};
use crate::limits::BLOCK_BYTES;
use crate::net::{Conn, NetError};
use crate::sim::{FaultKind, Plan, PlanError, Setting, Shape, Sim};
use crate::{Env, Time};

const BLOCKS: u64 = 64;
const HORIZON: Duration = Duration::from_millis(200);

fn shape(faults: Vec<FaultKind>) -> Shape {
    Shape {
        settings: vec![Setting { name: "link.loss_ppm", choices: &[0, 0, 1_000, 50_000] }],
        processes: vec!["keeper".into()],
        drives: vec![("keeper".into(), "log".into())],
        links: vec![("client".into(), "keeper".into())],
        faults,
        steps_max: 10,
        horizon: HORIZON,
        drive_bytes: BLOCKS * BLOCK_BYTES as u64,
    }
}

fn keeper_addr() -> SocketAddr {
    SocketAddr::new(machine(1), 700)
}

/// Writes each number that a connection sends to the block of that number, and sends it back when that is stable.
async fn serve(drive: Drive, mut conn: Conn) -> Result<(), DriveError> {
    let mut buf = BytesMut::new();
    while conn.reader.read(&mut buf).await.is_ok_and(|len| len > 0) {
        for number in buf.split() {
            let at = u64::from(number) % BLOCKS * BLOCK_BYTES as u64;
            drive.write(at, Bytes::from(vec![number; BLOCK_BYTES]), Durability::Durable).await?;
            conn.writer.push(|out| out.extend_from_slice(&[number]));
        }
    }
    Ok(())
}

/// A failed write ends the service until the next start, as the rule for failed writes asks.
async fn keeper(env: Env) {
    let Ok(drive) = env.open_drive(created("log", BLOCKS)).await else { return };
    let Ok(listener) = env.listen(keeper_addr()) else { return };
    while let Ok(conn) = listener.accept().await {
        if serve(drive.clone(), conn).await.is_err() {
            return;
        }
    }
}

async fn ask(conn: &mut Conn, number: u8) -> Result<u8, NetError> {
    conn.writer.push(|out| out.extend_from_slice(&[number]));
    let mut buf = BytesMut::new();
    match conn.reader.read(&mut buf).await? {
        0 => Err(NetError::Closed { addr: conn.reader.peer_addr() }),
        _ => Ok(buf[0]),
    }
}

async fn client(env: Env, kept: Rc<RefCell<Vec<u8>>>) {
    let deadline = Duration::from_millis(50);
    let mut conn = None;
    for number in 1..60 {
        env.sleep(Duration::from_millis(3)).await;
        if conn.is_none() {
            conn = env.timeout(deadline, env.connect(keeper_addr())).await.ok().and_then(Result::ok);
        }
        let Some(open) = &mut conn else { continue };
        match env.timeout(deadline, ask(open, number)).await {
            Ok(Ok(answer)) => {
                assert_eq!(answer, number);
                kept.borrow_mut().push(number);
            }
            _ => conn = None,
        }
    }
}

/// Runs a plan and returns the trace's hash, the numbers acknowledged, and the world.
fn run(plan: &Plan) -> (u64, Vec<u8>, Sim) {
    let sim = Sim::with_options(plan.seed, plan.sim_options());
    let (node, caller) = (sim.process("keeper", machine(1)), sim.process("client", machine(2)));
    let kept = Rc::new(RefCell::new(Vec::new()));
    sim.start(node, keeper);
    let env = sim.env(caller);
    env.spawn(client(env.clone(), Rc::clone(&kept)));
    plan.apply(&sim).expect("the world has these processes");
    sim.run_for(HORIZON * 2);
    sim.heal();
    sim.run_for(HORIZON);
    let kept = kept.take();
    (sim.trace_hash(), kept, sim)
}

#[test]
fn under_faults_to_be_survived_nothing_acknowledged_is_lost() {
    let mut acknowledged = 0;
    for seed in 0..300 {
        let plan = Plan::expand(seed, &shape(FaultKind::survivable()));
        let (_, kept, sim) = run(&plan);
        let drive = sim.drive(machine(1), "log");
        for &number in &kept {
            let block = sim.peek_drive(drive, u64::from(number) * BLOCK_BYTES as u64, BLOCK_BYTES);
            assert!(block.iter().all(|&byte| byte == number), "{number} is lost by\n{plan}");
        }
        acknowledged += kept.len();
    }
    assert!(acknowledged > 300 * 30, "a keeper that refuses all keeps this test too: {acknowledged}");
}

#[test]
fn what_is_lost_under_the_other_faults_is_in_the_atlas() {
    let mut lost = 0;
    for seed in 0..300 {
        let kinds = FaultKind::ALL.into_iter().filter(|&kind| kind != FaultKind::GoneDrive).collect();
        let (_, kept, sim) = run(&Plan::expand(seed, &shape(kinds)));
        let drive = sim.drive(machine(1), "log");
        for &number in &kept {
            let at = u64::from(number) * BLOCK_BYTES as u64;
            let whole = sim.peek_drive(drive, at, BLOCK_BYTES).iter().all(|&byte| byte == number);
            assert!(whole || sim.atlas().is_harmed(drive, at..at + 1), "seed {seed}: {number}");
            lost += u32::from(!whole);
        }
    }
    assert!(lost > 10, "{lost} numbers lost: the faults do not bite");
}

#[test]
fn a_plan_and_its_text_run_alike() {
    for seed in 0..30 {
        let plan = Plan::expand(seed, &shape(FaultKind::ALL.to_vec()));
        let read: Plan = plan.to_string().parse().expect("it was written so");
        assert_eq!(run(&plan).0, run(&read).0);
    }
}

#[test]
fn every_subset_of_a_plan_is_a_plan() {
    let plan = Plan::expand(11, &shape(FaultKind::ALL.to_vec()));
    assert!(plan.steps.len() > 2, "a seed with some steps");
    for left_out in &plan.steps {
        let (_, kept, sim) = run(&plan.without(|step| step.number == left_out.number));
        assert!(sim.now() > Time::ZERO + HORIZON && kept.len() < 60);
    }
}

#[test]
fn healing_brings_everyone_back() {
    let sim = Sim::new(1);
    let (one, two) = (sim.process("one", machine(1)), sim.process("two", machine(2)));
    sim.crash(one);
    sim.pause(two);
    sim.partition(machine(1), machine(2));
    sim.heal();
    let _listener = sim.env(one).listen(keeper_addr()).expect("a free port");
    let env = sim.env(two);
    let reached = sim.block_on(two, async move { env.connect(keeper_addr()).await.is_ok() });
    assert!(reached);
}

#[test]
fn a_plan_for_another_world_is_refused() {
    let plan: Plan = "step 4 at 1ms pause nobody 1ms".parse().expect("a plan");
    assert_eq!(plan.apply(&Sim::new(1)), Err(PlanError::NoProcess { step: 4, name: "nobody".into() }));
}
