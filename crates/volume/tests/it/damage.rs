//! Flipped bits and unreadable sectors in every block: what is read is right, or it is refused by name.

use std::cell::RefCell;
use std::rc::Rc;

use ithaca_env::sim::{Death, DriveFault, Random};
use ithaca_volume::{Durability, Volume, VolumeError, VolumeOptions};

use crate::world::{
    Life, MACHINE, World, block, create, number, numbers, open_drive, small_options, small_settings,
};

/// How opens of a harmed drive ended, and blocks that could not be read.
#[derive(Debug, Default)]
struct Tally {
    opened: u32,
    refused: u32,
    damaged: u32,
}

fn closed_world() -> World {
    let world = World::new(21);
    let life = |seed| Life { options: small_options(10), seed, steps: 250, closes: true };
    for seed in [5, 6] {
        assert!(world.live(life(seed)), "a life without faults ends well");
        world.sim.end(world.process, Death::PowerCut);
    }
    world.sim.restart(world.process);
    world
}

fn harm_and_look(fault: DriveFault, tally: &Rc<RefCell<Tally>>) {
    let world = closed_world();
    world.sim.fault_drive(world.sim.drive(MACHINE, "volume"), fault);
    let (env, tally, model) = (world.sim.env(world.process), Rc::clone(tally), Rc::clone(&world.model));
    world.sim.block_on(world.process, async move {
        let opened = Volume::open(&env, open_drive(&env).await, small_settings()).await;
        let Ok(volume) = opened else {
            tally.borrow_mut().refused += 1;
            return;
        };
        tally.borrow_mut().opened += 1;
        let info = volume.info();
        assert_eq!(info.version.0, model.borrow().newest(), "nothing is cut off");
        for version in [info.floor, info.version] {
            let (expected, snapshot) =
                (model.borrow().at(version.0), volume.at(version).expect("it is kept"));
            match snapshot.read(0, info.blocks).await {
                Ok(data) => {
                    let right: Vec<u64> =
                        (0..info.blocks).map(|at| expected.get(&at).copied().unwrap_or(0)).collect();
                    assert_eq!(numbers(&data), right);
                }
                Err(VolumeError::Damaged { .. } | VolumeError::Drive(_)) => {}
                Err(other) => panic!("{other}"),
            }
            for at in 0..info.blocks {
                match snapshot.read(at, 1).await {
                    Ok(data) => {
                        assert_eq!(number(&data), expected.get(&at).copied().unwrap_or(0), "block {at}")
                    }
                    Err(VolumeError::Damaged { block }) => {
                        assert_eq!(block, at);
                        tally.borrow_mut().damaged += 1;
                    }
                    Err(VolumeError::Drive(_)) => tally.borrow_mut().damaged += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
}

#[test]
fn nothing_wrong_is_read_whichever_block_is_harmed() {
    let world = closed_world();
    let size = world.sim.drive_size_bytes(world.sim.drive(MACHINE, "volume")).expect("it is there");
    let (tally, mut rng) = (Rc::new(RefCell::new(Tally::default())), Random::new(1));
    for at in (0..size / 4096).filter(|at| at % 11 < 2) {
        let fault = match at % 11 {
            0 => DriveFault::Unreadable { offset: at * 4096 },
            _ => DriveFault::BitRot { offset: at * 4096 + rng.below(4096), bit: rng.below(8) as u8 },
        };
        harm_and_look(fault, &tally);
    }
    let tally = tally.borrow();
    assert!(tally.opened > 150 && tally.damaged > 10, "{tally:?}: too little was harmed to mean something");
}

#[test]
fn a_volume_without_room_tells_of_the_segments_that_harm_keeps() {
    let world = World::new(22);
    let drive = Rc::new(RefCell::new(None));
    let (env, made) = (world.sim.env(world.process), Rc::clone(&drive));
    world.sim.block_on(world.process, async move {
        let volume = create(&env, VolumeOptions { blocks: 2000, ..small_options(0) }).await;
        for at in 0..200 {
            volume.write(at, block(at + 1), Durability::Stable).await.expect("room");
        }
        *made.borrow_mut() = Some(volume);
    });
    // In the second segment, which is closed.
    let offset = (64 << 10) + (256 << 10) + (128 << 10);
    let harmed = world.sim.drive(MACHINE, "volume");
    world.sim.fault_drive(harmed, DriveFault::Unreadable { offset });
    let volume = drive.take().expect("it was made");
    world.sim.block_on(world.process, async move {
        volume.scrub().await.expect("it goes on");
        assert!(!volume.info().chain.damage.is_empty(), "it is found");
        let mut first = 200;
        let full = loop {
            match volume.write(first, block(first + 1), Durability::Stable).await {
                Ok(_) => first += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, VolumeError::Full { harmed_segments: 1, .. }), "{full}");
        assert!(full.to_string().contains("1 segments have damage"), "{full}");
    });
}
