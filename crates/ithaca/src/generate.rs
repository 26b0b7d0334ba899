//! What is made of the arguments themselves: completions, manual pages, the version.

use std::path::Path;

use crate::cli;
use crate::config;
use crate::failure::Failure;
use crate::json::Object;
use crate::output::Output;

fn command() -> clap::Command {
    config::apply(cli::command(), &config::File::default())
}

/// Prints the completions of a shell.
pub fn completions(shell: clap_complete::Shell, out: &mut Output) -> Result<(), Failure> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command(), "ithaca", &mut text);
    out.raw(&text)?;
    out.flush()
}

/// Writes a page for every command.
pub fn man(dir: &Path, out: &mut Output) -> Result<(), Failure> {
    let failed = |error: std::io::Error| Failure::usage(format!("man: {}: {error}", dir.display()));
    ithaca_env::real::files::create_dir(dir).map_err(failed)?;
    let mut root = command();
    root.build();
    let pages = write_pages(&root, "ithaca", dir).map_err(failed)?;
    out.either(
        || format!("wrote {pages} pages to {}", dir.display()),
        || Object::new().number("pages", pages).string("dir", &dir.display().to_string()),
    )?;
    out.flush()
}

fn write_pages(command: &clap::Command, name: &str, dir: &Path) -> std::io::Result<u64> {
    // A page's name tells its place: the manual knows no nested commands.
    let mut page = Vec::new();
    clap_mangen::Man::new(command.clone().name(name.to_owned()).display_name(name.to_owned()))
        .render(&mut page)?;
    ithaca_env::real::files::write(&dir.join(format!("{name}.1")), &page)?;
    let mut pages = 1;
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        pages += write_pages(verb, &format!("{name}-{}", verb.get_name()), dir)?;
    }
    Ok(pages)
}

/// Prints the version.
pub fn version(out: &mut Output) -> Result<(), Failure> {
    let version = env!("CARGO_PKG_VERSION");
    out.either(|| format!("ithaca {version}"), || Object::new().string("version", version))?;
    out.flush()
}
