// SPDX-License-Identifier: Apache-2.0
//! One simulator per state directory.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::Path;

use crate::exit::{self, Failure};

/// The lock; given back by the kernel when the process ends, however it ends.
pub struct StateLock {
    _file: File,
}

/// Takes `directory` (made when it is missing) for this process.
///
/// # Errors
/// Exit 78 when the directory cannot be used, exit 69 with the holder's pid when somebody has it.
pub fn hold(directory: &Path) -> anyhow::Result<StateLock> {
    let unusable = |error: std::io::Error| {
        let text = format!(
            "FLY_STATE_DIR: {} cannot be used: {error}; make it a directory that this user may write",
            directory.display()
        );
        Failure::new(exit::CONFIG, text)
    };
    std::fs::create_dir_all(directory).map_err(unusable)?;
    let path = directory.join("lock");
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let mut file = options.map_err(unusable)?;
    match file.try_lock() {
        Ok(()) => {
            file.set_len(0).map_err(unusable)?;
            writeln!(file, "{}", std::process::id()).map_err(unusable)?;
            Ok(StateLock { _file: file })
        }
        Err(TryLockError::WouldBlock) => {
            let mut pid = String::new();
            let _ = file.rewind().and_then(|()| file.read_to_string(&mut pid));
            let text = format!(
                "FLY_STATE_DIR: {} is held by the flysim with pid {}; stop it or choose another directory",
                directory.display(),
                pid.trim()
            );
            Err(Failure::new(exit::UNAVAILABLE, text).into())
        }
        Err(TryLockError::Error(error)) => Err(unusable(error).into()),
    }
}
