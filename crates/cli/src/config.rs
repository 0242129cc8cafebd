//! `meshloom config`: every key of the run config.

use anyhow::Result;
use meshloom::pjrt::Topology;
use meshloom::pjrt::ahead_of_time::{self, Settings};
use meshloom_train::Devices;
use meshloom_train::config::{KeyInfo, RunConfig, SectionInfo};

use crate::arguments::{Config, Format};

pub fn run(arguments: &Config) -> Result<()> {
    let config = if arguments.defaults { RunConfig::default() } else { arguments.config.load([])? };
    config.check_validation()?;
    let config = if arguments.resolved { resolved(&config)? } else { config };
    let sections = config.describe();
    match arguments.format {
        Format::Text => print!("{}", sections.iter().map(text).collect::<Vec<_>>().join("\n")),
        Format::Toml => print!("{}", sections.iter().map(commented).collect::<Vec<_>>().join("\n")),
        Format::Json => println!("{}", serde_json::to_string_pretty(&sections)?),
    }
    Ok(())
}

/// The config with what its platform and devices settle.
fn resolved(config: &RunConfig) -> Result<RunConfig> {
    if config.target.topology.is_empty() {
        let Devices { config, client, notes } = config.open()?;
        for note in notes {
            eprintln!("warning: {note}");
        }
        return Ok(config.resolved_on(client.platform())?);
    }
    let topology = Topology::parse(&config.target.topology)?;
    let described = ahead_of_time::describe(&topology, &Settings::default())?;
    Ok(config.on_devices(described.devices.len())?.resolved_on(&described.platform)?)
}

/// A section for people: each key with its value, then what it means and allows.
fn text(section: &SectionInfo) -> String {
    let absent = if section.is_present { "" } else { " (not in this config)" };
    let mut text = format!("[{}] {}{absent}\n", section.name, section.meaning);
    for key in &section.keys {
        let KeyInfo { name, value, default, allowed, meaning, .. } = key;
        let shown = match (value, default) {
            (Some(value), Some(default)) if value != default => format!("{name} = {value} (default {default})"),
            (Some(value), _) => format!("{name} = {value}"),
            (None, Some(default)) => format!("{name} (default {default})"),
            (None, None) => format!("{name} (no default)"),
        };
        text += &format!("  {shown}\n      {meaning}\n      Must be {allowed}.{}\n", needed(key));
    }
    text
}

/// The keys without which a key has no effect.
fn needed(key: &KeyInfo) -> String {
    let need = |(key, values): &(&str, &[&str])| match values {
        [] => key.to_string(),
        values => {
            format!("{key} = {}", values.iter().map(|value| format!("{value:?}")).collect::<Vec<_>>().join(" or "))
        }
    };
    let needs: Vec<String> = key.needs.iter().map(need).collect();
    if needs.is_empty() { String::new() } else { format!(" Only with {}.", needs.join(" and ")) }
}

/// A section of a config that can be read again. Keys without a value are comments.
fn commented(section: &SectionInfo) -> String {
    let off = |is_off: bool| if is_off { "#" } else { "" };
    let mut text = format!("# {}\n{}[{}]\n", section.meaning, off(!section.is_present), section.name);
    for key in &section.keys {
        text += &format!("# {} Must be {}.{}\n", key.meaning, key.allowed, needed(key));
        let value = key.value.as_ref().or(key.default.as_ref());
        let is_off = key.value.is_none();
        text += &match value {
            Some(value) => format!("{}{} = {value}\n", off(is_off), key.name),
            None => format!("#{} =\n", key.name),
        };
    }
    text
}
