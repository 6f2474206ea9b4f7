// SPDX-License-Identifier: Apache-2.0
//! Raw settings: what was typed and where, before anybody asks whether it is right.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};

use super::envfile;

/// One setting, declared once: environment name, flag and help come from here.
pub struct Setting {
    /// Name in the environment and in env files.
    pub env: &'static str,
    /// Long flag, without the dashes.
    pub flag: &'static str,
    /// Placeholder in the help.
    pub value: &'static str,
    /// Value used when nobody gives one; empty when there is none.
    pub default: &'static str,
    /// Help text, with units.
    pub help: &'static str,
}

/// Where a value came from, in words an operator can act on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Line of an env file.
    File(PathBuf, usize),
    /// The environment of the process.
    Environment,
    /// The command line.
    Flag(&'static str),
    /// Nobody gave it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Environment => f.write_str("the environment of the process"),
            Self::Flag(flag) => write!(f, "flag --{flag}"),
            Self::Default => f.write_str("not given (no env file line, no environment variable, no flag)"),
        }
    }
}

/// One value that is not usable: who refuses it, where it stands, what was expected and found, what to do.
#[derive(Debug)]
pub struct Bad {
    /// Command and setting.
    pub who: String,
    /// Place of the value.
    pub origin: Origin,
    /// What would have been accepted.
    pub expected: String,
    /// What stands there.
    pub found: String,
    /// The way out.
    pub fix: String,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} is not usable", self.who)?;
        writeln!(f, "  where:    {}", self.origin)?;
        writeln!(f, "  expected: {}", self.expected)?;
        writeln!(f, "  found:    {}", self.found)?;
        write!(f, "  do:       {}", self.fix)
    }
}

/// Values given on the command line for a list of settings, plus `--env-file`.
#[derive(Debug, Default)]
pub struct Given {
    /// `--env-file`, in the order given; a later one overrides an earlier one.
    pub env_files: Vec<PathBuf>,
    values: BTreeMap<&'static str, String>,
}

impl Given {
    /// Adds `--env-file` and one flag for each of `settings` to `command`.
    pub fn augment(command: Command, settings: &'static [Setting]) -> Command {
        let file = Arg::new("env-file")
            .long("env-file")
            .value_name("FILE")
            .action(clap::ArgAction::Append)
            .value_parser(clap::value_parser!(PathBuf))
            .help("Read first: KEY=VALUE lines as in a systemd EnvironmentFile; the environment and flags override it; may be given again");
        settings.iter().fold(command.arg(file), |command, setting| {
            let default = match setting.default {
                "" => String::new(),
                text => format!(" [default: {text}]"),
            };
            command.arg(
                Arg::new(setting.env)
                    .long(setting.flag)
                    .value_name(setting.value)
                    .allow_hyphen_values(true)
                    .help(format!("{} [env: {}]{default}", setting.help, setting.env)),
            )
        })
    }

    /// Takes what clap found for `settings`.
    ///
    /// # Errors
    /// Those of clap, when an argument is not defined in the command.
    pub fn collect(matches: &ArgMatches, settings: &'static [Setting]) -> Result<Self, clap::Error> {
        let env_files = matches.get_many::<PathBuf>("env-file").into_iter().flatten().cloned().collect();
        let mut given = Self { env_files, ..Self::default() };
        for setting in settings {
            if let Some(value) = matches.get_one::<String>(setting.env) {
                given.values.insert(setting.env, value.clone());
            }
        }
        Ok(given)
    }
}

/// Makes a clap argument group out of a list of settings.
macro_rules! settings_args {
    ($(#[$doc:meta])* $name:ident, $settings:expr) => {
        $(#[$doc])*
        #[derive(Debug, Default)]
        pub struct $name(pub $crate::config::layers::Given);

        impl clap::FromArgMatches for $name {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                $crate::config::layers::Given::collect(matches, $settings).map(Self)
            }
            fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }

        impl clap::Args for $name {
            fn augment_args(command: clap::Command) -> clap::Command {
                $crate::config::layers::Given::augment(command, $settings)
            }
            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }
    };
}
pub(crate) use settings_args;

/// The three layers laid over each other, and the complaints found so far.
pub struct Layers {
    who: &'static str,
    values: BTreeMap<String, (String, Origin)>,
    /// Everything that was not usable, in the order it was met.
    pub bad: Vec<Bad>,
    /// Names that nobody knows, with their place: told, not refused, so that an older binary starts on a newer file.
    pub unknown: Vec<(String, Origin)>,
}

impl Layers {
    /// Lays env file, environment and flags over each other. `known` are the names that may stand in the file.
    pub fn new(
        who: &'static str,
        given: Given,
        known: &[&'static [Setting]],
        environment: impl Fn(&str) -> Option<String>,
    ) -> Self {
        let mut layers = Self { who, values: BTreeMap::new(), bad: Vec::new(), unknown: Vec::new() };
        for path in &given.env_files {
            layers.read_file(path, known);
        }
        for setting in known.iter().copied().flatten() {
            if let Some(value) = environment(setting.env) {
                layers.values.insert(setting.env.into(), (value, Origin::Environment));
            }
            if let Some(value) = given.values.get(setting.env) {
                layers.values.insert(setting.env.into(), (value.clone(), Origin::Flag(setting.flag)));
            }
        }
        layers
    }

    fn read_file(&mut self, path: &Path, known: &[&'static [Setting]]) {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) => {
                let found = format!("{}: {error}", path.display());
                self.refuse(
                    "--env-file",
                    Origin::Flag("env-file"),
                    "a readable UTF-8 file",
                    found,
                    "create it or correct the path",
                );
                return;
            }
        };
        let (lines, bad) = envfile::parse(&text);
        for line in bad {
            let origin = Origin::File(path.to_owned(), line.line);
            self.refuse(
                "the env file",
                origin,
                "KEY=VALUE, a # comment or an empty line",
                line.found,
                "correct or remove the line",
            );
        }
        for line in lines {
            let origin = Origin::File(path.to_owned(), line.line);
            let is_known = known.iter().copied().flatten().any(|setting| setting.env == line.key);
            if line.key.starts_with("FLY_") && !is_known {
                self.unknown.push((line.key.clone(), origin.clone()));
            }
            self.values.insert(line.key, (line.value, origin));
        }
    }

    /// Notes that a value is not usable.
    pub fn refuse(
        &mut self,
        name: &str,
        origin: Origin,
        expected: &str,
        found: impl Into<String>,
        fix: &str,
    ) {
        self.bad.push(Bad {
            who: format!("{}: {name}", self.who),
            origin,
            expected: expected.into(),
            found: found.into(),
            fix: fix.into(),
        });
    }

    /// The value of `setting` and its place; an empty value counts as not given.
    pub fn raw(&self, setting: &Setting) -> Option<(String, Origin)> {
        let given = self.values.get(setting.env).filter(|(value, _)| !value.is_empty()).cloned();
        given.or_else(|| (!setting.default.is_empty()).then(|| (setting.default.into(), Origin::Default)))
    }

    /// Checks `setting` with `check`; a refusal is noted and gives `None`, and so does a value that nobody gave.
    pub fn optional<T>(
        &mut self,
        setting: &Setting,
        expected: &str,
        check: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        let (value, origin) = self.raw(setting)?;
        match check(&value) {
            Ok(checked) => Some(checked),
            Err(why) => {
                let fix = format!(
                    "set {} (or --{}) to a value as expected and start again",
                    setting.env, setting.flag
                );
                let found = if why.is_empty() { format!("{value:?}") } else { format!("{value:?} ({why})") };
                self.refuse(setting.env, origin, expected, found, &fix);
                None
            }
        }
    }

    /// As `optional`, and notes a value that is not there at all.
    pub fn required<T>(
        &mut self,
        setting: &Setting,
        expected: &str,
        check: impl FnOnce(&str) -> Result<T, String>,
    ) -> Option<T> {
        if self.raw(setting).is_none() {
            let fix = format!("set {} in the env file or pass --{}", setting.env, setting.flag);
            self.refuse(setting.env, Origin::Default, expected, "nothing", &fix);
            return None;
        }
        self.optional(setting, expected, check)
    }
}
