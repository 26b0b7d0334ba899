//! `ithaca top`: what a cluster does now, drawn again and again.
//!
//! A look asks every node about itself ([`ithaca_log::client::Observer`]); [`rates`] are made of two looks, a [`frame`] of
//! everything that is shown, and [`table`] and [`json`] are the two ways to show one. Only [`screen`] knows terminals.

mod frame;
mod json;
mod rates;
mod screen;
mod table;

use std::time::Duration;

use ithaca_env::real::{self, shutdown_signal, terminal};
use ithaca_env::task::{Ended, race};
use ithaca_env::{Env, Time};
use ithaca_log::client::Observer;

use crate::cli::{Global, TopArgs};
use crate::client::{endpoints, observe};
use crate::failure::Failure;
use crate::output::{Output, while_read};

use frame::{Frame, History};
use screen::Screen;

/// Shows the cluster until SIGINT or SIGTERM, or once: to people without a terminal, and with `--once`. Rates are of the
/// time between two looks, so what is shown once comes after one interval.
///
/// Errors: unreachable if no endpoint answers at the start. A node that is lost later is shown as lost.
pub fn run(global: &Global, arguments: &TopArgs, out: &mut Output) -> Result<(), Failure> {
    let ended = real::run(|env| async move {
        let signalled = env.spawn(shutdown_signal());
        match race(signalled.join(), while_read(&env, show(&env, global, arguments, out))).await {
            Ended::First(Some(Err(error))) => Err(Failure::unreachable(format!("signals: {error}"))),
            Ended::First(_) => Ok(()),
            Ended::Second(shown) => shown,
        }
    });
    ended.map_err(|failure| failure.context(format_args!("top at {}", endpoints(global))))
}

async fn show(env: &Env, global: &Global, arguments: &TopArgs, out: &mut Output) -> Result<(), Failure> {
    let mut watch = Watch::start(env, global, arguments.interval).await?;
    let is_live = !arguments.once && !out.is_json() && terminal::size().is_some();
    if is_live {
        let mut screen = Screen::enter(out)?;
        loop {
            let frame = watch.next().await;
            screen.draw(|columns| table::render(&frame, columns))?;
        }
    }
    // The first look has nothing to be compared with.
    watch.next().await;
    loop {
        let frame = watch.next().await;
        out.either(|| table::render(&frame, usize::MAX), || json::object(&frame))?;
        out.flush()?;
        if arguments.once || !out.is_json() {
            return Ok(());
        }
    }
}

/// A cluster that is looked at at regular times.
struct Watch<'a> {
    env: &'a Env,
    observer: Observer,
    history: History,
    interval: Duration,
    next_look: Time,
}

impl<'a> Watch<'a> {
    async fn start(env: &'a Env, global: &Global, interval: Duration) -> Result<Self, Failure> {
        let observer = observe(env, global).await?;
        Ok(Self { env, observer, history: History::default(), interval, next_look: env.now() })
    }

    /// What the cluster does at the next time: the first at once, each other an interval after the one before began, or
    /// when that one ended if a silent node made it longer.
    async fn next(&mut self) -> Frame {
        self.env.sleep_until(self.next_look).await;
        self.next_look = self.env.now() + self.interval;
        let sight = self.observer.look().await;
        self.history.frame(sight)
    }
}
