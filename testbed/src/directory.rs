//! A cluster's directory: data, certificates, logs. It is removed whole when the cluster was stopped on purpose;
//! else a test failed, or nobody knows, and the logs stay an hour and their path is printed. What a process leaves
//! that was killed, or that ended with a shared cluster running, is swept at the next start.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::TempDir;

const PREFIX: &str = "slipway-testbed-";

/// Marks a directory whose logs someone will want to read.
const KEEP: &str = "keep";

/// How long logs stay that were marked, and those that were left.
const MARKED_FOR: Duration = Duration::from_hours(24);
const LEFT_FOR: Duration = Duration::from_hours(1);

/// A directory that this process owns while it holds its lock.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// Held open for its lock.
    _owner: File,
    temporary: Option<TempDir>,
    /// Whether all went well, so that nobody will want the logs.
    is_well: bool,
}

impl Directory {
    /// A new directory under `base`, or under the system's temporary directory.
    pub fn create(name: &str, base: Option<&Path>) -> io::Result<Directory> {
        let base = base.map_or_else(std::env::temp_dir, Path::to_owned);
        sweep(&base);
        let temporary = tempfile::Builder::new()
            .prefix(&format!("{PREFIX}{name}-"))
            .tempdir_in(base)?;
        let path = temporary.path().to_owned();
        // Locked before it has the name a sweeper looks for.
        let unnamed = path.join("owner-to-be");
        let owner = File::create(&unnamed)?;
        owner.lock()?;
        fs::rename(&unnamed, path.join("owner"))?;
        fs::create_dir(path.join("logs"))?;
        fs::create_dir(path.join("pki"))?;
        Ok(Directory {
            path,
            _owner: owner,
            temporary: Some(temporary),
            is_well: false,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Removes the directory whole, unless its logs were asked to be kept.
    pub fn all_went_well(&mut self) {
        self.is_well = true;
    }

    /// Keeps the logs when the directory goes.
    pub fn keep_logs(&self) {
        // Losing the mark loses logs, never the test's own result.
        let _ = File::create(self.path.join(KEEP));
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let Some(temporary) = self.temporary.take() else {
            return;
        };
        if !self.is_well || self.path.join(KEEP).exists() {
            let path = temporary.keep();
            remove_all_but_logs(&path);
            eprintln!("testbed: logs are kept in {}", self.logs().display());
        }
    }
}

/// Removes what processes left behind, and logs that nobody fetched in time.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let path = entry.path();
        if !entry.file_name().to_string_lossy().starts_with(PREFIX) {
            continue;
        }
        let Ok(owner) = File::open(path.join("owner")) else {
            continue;
        };
        // Whoever holds the lock still runs.
        if owner.try_lock().is_err() {
            continue;
        }
        let is_marked = path.join(KEEP).exists();
        let stays = if is_marked { MARKED_FOR } else { LEFT_FOR };
        let age = owner.metadata().and_then(|metadata| metadata.modified());
        let is_old = age.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > stays));
        // Another sweeper may be at it: whatever is gone is gone.
        if is_old {
            let _ = fs::remove_dir_all(&path);
        } else {
            remove_all_but_logs(&path);
        }
    }
}

fn remove_all_but_logs(path: &Path) {
    for entry in fs::read_dir(path).into_iter().flatten().filter_map(Result::ok) {
        if ["logs", "owner", KEEP]
            .iter()
            .any(|name| entry.file_name() == *name)
        {
            continue;
        }
        let path = entry.path();
        let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_directory_goes_with_its_owner_and_logs_stay_when_asked() {
        let base = tempfile::tempdir().unwrap();
        let mut gone = Directory::create("gone", Some(base.path())).unwrap();
        gone.all_went_well();
        let dropped = Directory::create("dropped", Some(base.path())).unwrap();
        let kept = Directory::create("kept", Some(base.path())).unwrap();
        fs::write(kept.path().join("data"), "x").unwrap();
        kept.keep_logs();
        let paths = [&gone, &kept, &dropped].map(|directory| directory.path().to_owned());
        let [gone_path, kept_path, dropped_path] = paths;
        drop((gone, kept, dropped));
        assert!(!gone_path.exists());
        assert!(dropped_path.join("logs").exists() && !dropped_path.join("pki").exists());
        assert!(kept_path.join("logs").exists());
        assert!(!kept_path.join("data").exists());
    }

    #[test]
    fn what_a_killed_process_left_is_swept_and_what_lives_is_not() {
        let base = tempfile::tempdir().unwrap();
        let alive = Directory::create("alive", Some(base.path())).unwrap();
        let dead = base.path().join("slipway-testbed-dead-1");
        let old = base.path().join("slipway-testbed-old-1");
        for path in [&dead, &old] {
            fs::create_dir_all(path.join("logs")).unwrap();
            fs::create_dir(path.join("etcd")).unwrap();
            File::create(path.join("owner")).unwrap();
        }
        let yesterday = SystemTime::now() - Duration::from_hours(25);
        let owner = File::options().write(true).open(old.join("owner")).unwrap();
        owner.set_modified(yesterday).unwrap();
        drop(owner);
        let foreign = base.path().join("something-else");
        fs::create_dir(&foreign).unwrap();
        sweep(base.path());
        assert!(alive.path().join("pki").exists());
        assert!(dead.join("logs").exists() && !dead.join("etcd").exists());
        assert!(!old.exists());
        assert!(foreign.exists());
    }
}
