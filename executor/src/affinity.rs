//! Which CPUs this process may use, which of them the shards get, and how a thread is pinned to one.
//!
//! Two limits count. The *affinity mask* of a thread names the CPUs it may run on; the kernel keeps it
//! inside the cpuset. The *quota* of a control group says how much CPU time all threads together get,
//! wherever they run. `resolve` turns a [`Cores`] and these two into one CPU per shard and is pure;
//! reading the limits and pinning are system calls of a few microseconds.
//!
//! Pinning does not leak: a [`Pinned`] guard gives the thread its former mask back. A child process or a
//! worker thread inherits the mask of the thread that starts it, so whoever starts one from a pinned
//! thread sets the mask that [`Mask::current`] gave before anything was pinned.

use std::fs;
use std::io;
use std::marker::PhantomData;
use std::path::{Component, Path, PathBuf};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The most shards that [`Cores::Count`] may ask for: as many as an affinity mask can name CPUs. A shard
/// is a thread, and beyond that a number is a mistake.
const SHARDS_MAX: usize = CpuSet::MAX_CPU;

/// How many shards a runtime has, and where they run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Cores {
    /// One shard for each CPU that the calling thread's affinity mask allows, each pinned to its CPU.
    ///
    /// A control group's CPU quota, rounded up, caps their number. Shards that a quota keeps from being
    /// one a CPU are not pinned: the CPUs are shared with others then, and every process so limited
    /// would choose the same ones. A single shard is not pinned either.
    #[default]
    All,
    /// This many shards, whatever the quota is, pinned to the allowed CPUs in turn; with more shards than
    /// CPUs, CPUs are used more than once. A single shard is not pinned.
    Count(usize),
    /// One shard pinned to each CPU of the list, in its order. A CPU may occur more than once.
    List(Vec<usize>),
}

impl Cores {
    /// The CPU of each shard, `None` for one that is not pinned. Never empty.
    ///
    /// `allowed` are the CPUs of the affinity mask, of which there is always one; `quota` is what
    /// [`quota`] said.
    ///
    /// # Errors
    ///
    /// `InvalidInput`, with the remedy, for no shard at all, for more than an affinity mask can name, and
    /// for a CPU that is not allowed.
    pub(crate) fn resolve(
        &self,
        allowed: &[usize],
        quota: Option<usize>,
    ) -> io::Result<Vec<Option<usize>>> {
        match self {
            Cores::All => {
                let capped = quota.map_or(allowed.len(), |quota| quota.min(allowed.len()));
                match capped {
                    0 | 1 => Ok(vec![None]),
                    shards if shards < allowed.len() => Ok(vec![None; shards]),
                    _ => Ok(allowed.iter().copied().map(Some).collect()),
                }
            }
            Cores::Count(0) => Err(invalid(
                "a runtime needs at least one shard: ask for one core or more, or for Cores::All"
                    .to_owned(),
            )),
            Cores::Count(1) => Ok(vec![None]),
            Cores::Count(shards) if *shards > SHARDS_MAX => Err(invalid(format!(
                "{shards} shards are too many: ask for {SHARDS_MAX} cores or fewer, or for Cores::All"
            ))),
            Cores::Count(shards) => Ok(allowed
                .iter()
                .copied()
                .map(Some)
                .cycle()
                .take(*shards)
                .collect()),
            Cores::List(cpus) if cpus.is_empty() => Err(invalid(
                "a runtime needs at least one shard: name one CPU or more, or use Cores::All"
                    .to_owned(),
            )),
            Cores::List(cpus) => cpus
                .iter()
                .map(|cpu| match allowed.contains(cpu) {
                    true => Ok(Some(*cpu)),
                    false => Err(invalid(format!(
                        "CPU {cpu} does not exist or is not allowed: this thread may use {} \
                         (its affinity mask and cpuset say so)",
                        ranges(allowed)
                    ))),
                })
                .collect(),
        }
    }
}

/// The CPUs that the calling thread may use, in ascending order.
///
/// # Errors
///
/// What the kernel says; `EINVAL` on a machine with more CPUs than a mask of 1024 can name.
pub(crate) fn allowed() -> io::Result<Vec<usize>> {
    Ok(Mask::current()?.cpus())
}

/// An affinity mask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask(CpuSet);

impl Mask {
    /// The mask of the calling thread.
    ///
    /// # Errors
    ///
    /// As [`allowed`].
    pub(crate) fn current() -> io::Result<Mask> {
        Ok(Mask(sched_getaffinity(None)?))
    }

    /// The mask that holds one CPU.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if no mask can name the CPU.
    pub(crate) fn one(cpu: usize) -> io::Result<Mask> {
        if cpu >= CpuSet::MAX_CPU {
            return Err(invalid(format!(
                "CPU {cpu} does not exist: the kernel numbers CPUs from 0 to {}",
                CpuSet::MAX_CPU - 1
            )));
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        Ok(Mask(set))
    }

    /// Its CPUs in ascending order.
    pub(crate) fn cpus(&self) -> Vec<usize> {
        (0..CpuSet::MAX_CPU)
            .filter(|cpu| self.0.is_set(*cpu))
            .collect()
    }

    /// Makes it the mask of the calling thread, and of the threads and processes that it starts from now.
    ///
    /// # Errors
    ///
    /// `EINVAL` if none of its CPUs is there and in the cpuset, `EPERM` where a sandbox forbids it.
    pub(crate) fn set(&self) -> io::Result<()> {
        Ok(sched_setaffinity(None, &self.0)?)
    }
}

/// The calling thread is pinned to one CPU until this is dropped; then it has its former mask again.
///
/// It stays on its thread. If the former mask cannot be set any more (its CPUs have gone meanwhile), the
/// thread stays pinned.
#[derive(Debug)]
#[must_use = "dropping it ends the pinning"]
pub(crate) struct Pinned {
    former: Mask,
    /// The mask is the thread's that made this: neither `Send` nor `Sync`.
    stays: PhantomData<*const ()>,
}

impl Pinned {
    /// Pins the calling thread.
    ///
    /// # Errors
    ///
    /// As [`Mask::one`] and [`Mask::set`]. The thread keeps its mask then: a caller that can do without
    /// pinning goes on and warns.
    pub(crate) fn to(cpu: usize) -> io::Result<Pinned> {
        let former = Mask::current()?;
        Mask::one(cpu)?.set().map_err(|error| {
            io::Error::new(
                error.kind(),
                format!(
                    "could not pin to CPU {cpu}, this thread may use {}: {error}",
                    ranges(&former.cpus())
                ),
            )
        })?;
        Ok(Pinned {
            former,
            stays: PhantomData,
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Nobody is left to be told, and a thread that stays where it is does no harm.
        let _ = self.former.set();
    }
}

/// How many CPUs' worth of time the control groups of this process allow, rounded up; `None` without a
/// limit, or where it cannot be read.
///
/// Looks at `cpu.max` (version 2) or `cpu.cfs_quota_us` (version 1) of the process's own group and of
/// every group above that can be seen; the tightest counts.
pub(crate) fn quota() -> Option<usize> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    tightest(&groups, &mounts, |path| fs::read_to_string(path).ok())
}

/// [`quota`] of the texts of `/proc/self/cgroup` and `/proc/self/mountinfo`, and of files.
fn tightest(groups: &str, mounts: &str, read: impl Fn(&Path) -> Option<String>) -> Option<usize> {
    hierarchies(groups, mounts)
        .iter()
        .flat_map(|hierarchy| {
            let read = &read;
            hierarchy
                .directories()
                .filter_map(move |directory| match hierarchy.version {
                    Version::One => cpus_of(
                        &read(&directory.join("cpu.cfs_quota_us"))?,
                        &read(&directory.join("cpu.cfs_period_us"))?,
                    ),
                    Version::Two => {
                        let text = read(&directory.join("cpu.max"))?;
                        let (quota, period) = text.trim().split_once(' ')?;
                        cpus_of(quota, period)
                    }
                })
        })
        .min()
}

/// The CPUs that a quota of microseconds in each period of microseconds allows; `None` for no limit
/// (written `max` or -1) and for what is no number.
fn cpus_of(quota: &str, period: &str) -> Option<usize> {
    let quota: u64 = quota.trim().parse().ok()?;
    let period: u64 = period.trim().parse().ok()?;
    if period == 0 {
        return None;
    }
    usize::try_from(quota.div_ceil(period).max(1)).ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where the control group of this process is to be found in one hierarchy.
#[derive(Debug, PartialEq, Eq)]
struct Hierarchy {
    version: Version,
    /// Where the hierarchy is mounted.
    mount: PathBuf,
    /// The group below `mount`.
    group: PathBuf,
}

impl Hierarchy {
    /// The group's directory and those above it, up to the mount point.
    fn directories(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.group.ancestors().map(|group| self.mount.join(group))
    }
}

/// The hierarchies that can limit CPU time: version 2, and that of version 1 with the `cpu` controller.
/// A machine may have both mounted; a controller belongs to one of them, the other has no such file.
fn hierarchies(groups: &str, mounts: &str) -> Vec<Hierarchy> {
    mounts
        .lines()
        .filter_map(|line| {
            // proc_pid_mountinfo(5): id, parent, device, root, mount point, options, optional fields,
            // a hyphen, type, source, options of the file system.
            let (mount, system) = line.split_once(" - ")?;
            let mut mount = mount.split(' ').skip(3);
            let (root, mount) = (mount.next()?, mount.next()?);
            let mut system = system.split(' ');
            let version = match system.next()? {
                "cgroup2" => Version::Two,
                "cgroup" if system.nth(1)?.split(',').any(|option| option == "cpu") => Version::One,
                _ => return None,
            };
            let group = group_of(groups, version)?;
            // A container may see only a part of the hierarchy, beginning at `root`. A group outside of
            // it cannot be looked at: the mount point is the nearest that can.
            let group = Path::new(group)
                .strip_prefix(root)
                .ok()
                .filter(|group| {
                    group
                        .components()
                        .all(|part| matches!(part, Component::Normal(_)))
                })
                .unwrap_or(Path::new(""));
            Some(Hierarchy {
                version,
                mount: PathBuf::from(mount),
                group: group.to_owned(),
            })
        })
        .collect()
}

/// The path of the group in `/proc/self/cgroup`, whose lines are `id:controllers:path` (cgroups(7)).
fn group_of(groups: &str, version: Version) -> Option<&str> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let found = match version {
            Version::One => controllers.split(',').any(|controller| controller == "cpu"),
            Version::Two => id == "0" && controllers.is_empty(),
        };
        found.then_some(path)
    })
}

/// CPUs as people write them: `0-3, 8`. For ascending numbers.
fn ranges(cpus: &[usize]) -> String {
    let runs = cpus.chunk_by(|before, after| before + 1 == *after);
    let words: Vec<String> = runs
        .filter_map(|run| match run {
            [] => None,
            [one] => Some(format!("{one}")),
            [first, .., last] => Some(format!("{first}-{last}")),
        })
        .collect();
    match words.is_empty() {
        true => "no CPU".to_owned(),
        false => format!("CPU {}", words.join(", ")),
    }
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pinned(cpus: &[usize]) -> Vec<Option<usize>> {
        cpus.iter().copied().map(Some).collect()
    }

    /// One shard a CPU, on the allowed ones; not pinned where there is one, or where a quota says that
    /// the CPUs are shared.
    #[test]
    fn all_is_the_mask_capped_by_the_quota() {
        let resolve = |allowed: &[usize], quota| Cores::All.resolve(allowed, quota).unwrap();
        assert_eq!(resolve(&[0, 2, 5], None), pinned(&[0, 2, 5]));
        assert_eq!(resolve(&[0, 2, 5], Some(3)), pinned(&[0, 2, 5]));
        assert_eq!(resolve(&[0, 2, 5], Some(64)), pinned(&[0, 2, 5]));
        assert_eq!(resolve(&[0, 2, 5], Some(2)), [None, None]);
        assert_eq!(resolve(&[0, 2, 5], Some(1)), [None]);
        assert_eq!(resolve(&[7], None), [None]);
    }

    /// H51: a process limited to CPU 1 gets one shard there, and as many shards as it asks for all there.
    #[test]
    fn a_restricted_cpuset_is_kept() {
        assert_eq!(Cores::All.resolve(&[1], None).unwrap(), [None]);
        assert_eq!(
            Cores::Count(3).resolve(&[1], None).unwrap(),
            pinned(&[1, 1, 1])
        );
        assert_eq!(
            Cores::List(vec![1]).resolve(&[1], None).unwrap(),
            pinned(&[1])
        );
        let error = Cores::List(vec![1, 0]).resolve(&[1], None).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        assert!(
            error.to_string().contains("CPU 0 does not exist"),
            "{error}"
        );
        assert!(error.to_string().contains("may use CPU 1 "), "{error}");
    }

    /// CPUs are taken in turn, and again when there are more shards; the quota has no say.
    #[test]
    fn a_count_goes_round() {
        let resolve = |count| Cores::Count(count).resolve(&[2, 3, 6], Some(1)).unwrap();
        assert_eq!(resolve(1), [None]);
        assert_eq!(resolve(2), pinned(&[2, 3]));
        assert_eq!(resolve(7), pinned(&[2, 3, 6, 2, 3, 6, 2]));
    }

    /// What cannot be is refused, and the error says what can.
    #[test]
    fn nonsense_is_refused_with_the_remedy() {
        let refused = |cores: Cores, remedy: &str| {
            let error = cores.resolve(&[0, 1, 2, 3, 8], None).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert!(error.to_string().contains(remedy), "{error}");
        };
        refused(Cores::Count(0), "one core or more");
        refused(Cores::Count(usize::MAX), "1024 cores or fewer");
        refused(Cores::List(Vec::new()), "one CPU or more");
        refused(
            Cores::List(vec![0, 7]),
            "CPU 7 does not exist or is not allowed",
        );
        refused(Cores::List(vec![usize::MAX]), "CPU 0-3, 8 ");
    }

    #[test]
    fn quotas_round_up() {
        assert_eq!(cpus_of("100000", "100000"), Some(1));
        assert_eq!(cpus_of("100001\n", "100000\n"), Some(2));
        assert_eq!(cpus_of("1000", "100000"), Some(1));
        assert_eq!(cpus_of("0", "100000"), Some(1));
        assert_eq!(cpus_of("max", "100000"), None);
        assert_eq!(cpus_of("-1", "100000"), None);
        assert_eq!(cpus_of("1", "0"), None);
        assert_eq!(cpus_of("", ""), None);
    }

    /// Files by their paths, for `tightest`.
    fn files<'a>(texts: &'a [(&str, &str)]) -> impl Fn(&Path) -> Option<String> + 'a {
        |path| {
            let (_, text) = texts.iter().find(|(name, _)| path == Path::new(name))?;
            Some((*text).to_owned())
        }
    }

    /// The tightest of the group and of those above it counts, up to the mount point.
    #[test]
    fn version_two_is_read_upwards() {
        let groups = "0::/pods/web/worker\n";
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
                      31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
        let quota = |texts: &[(&str, &str)]| tightest(groups, mounts, files(texts));
        let own = ("/sys/fs/cgroup/pods/web/worker/cpu.max", "max 100000\n");
        let above = ("/sys/fs/cgroup/pods/cpu.max", "250000 100000\n");
        let top = ("/sys/fs/cgroup/cpu.max", "150000 100000\n");
        assert_eq!(quota(&[]), None);
        assert_eq!(quota(&[own]), None);
        assert_eq!(quota(&[own, above]), Some(3));
        assert_eq!(quota(&[own, above, top]), Some(2));
    }

    /// A container sees its own group as the mount point, whatever it is called outside.
    #[test]
    fn a_part_of_a_hierarchy_is_read_from_its_root() {
        let limit = [("/sys/fs/cgroup/cpu.max", "400000 100000\n")];
        let inner = [("/sys/fs/cgroup/inner/cpu.max", "200000 100000\n")];
        let mounts = "31 23 0:28 /box/7 /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(tightest("0::/box/7", mounts, files(&limit)), Some(4));
        assert_eq!(tightest("0::/box/7/inner", mounts, files(&inner)), Some(2));
        assert_eq!(tightest("0::/elsewhere", mounts, files(&limit)), Some(4));
        let mounts = "31 23 0:28 / /sys/fs/cgroup ro - cgroup2 cgroup rw\n";
        assert_eq!(tightest("0::/../inner", mounts, files(&limit)), Some(4));
    }

    /// Version 1 beside version 2: the hierarchy that has the cpu controller counts.
    #[test]
    fn version_one_is_read_where_the_controller_is() {
        let groups = "9:name=systemd:/\n4:cpuset:/a\n3:cpu,cpuacct:/jobs/1\n0::/\n";
        let mounts = "32 31 0:29 / /cg/cpuset rw,relatime - cgroup cgroup rw,cpuset\n\
                      33 31 0:30 / /cg/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct\n\
                      41 31 0:38 / /cg/unified rw,relatime - cgroup2 cgroup2 rw\n";
        let texts = [
            ("/cg/cpu/jobs/1/cpu.cfs_quota_us", "-1\n"),
            ("/cg/cpu/jobs/1/cpu.cfs_period_us", "100000\n"),
            ("/cg/cpu/jobs/cpu.cfs_quota_us", "700000\n"),
            ("/cg/cpu/jobs/cpu.cfs_period_us", "200000\n"),
            ("/cg/cpuset/a/cpu.cfs_quota_us", "1000\n"),
            ("/cg/cpuset/a/cpu.cfs_period_us", "1000\n"),
        ];
        assert_eq!(tightest(groups, mounts, files(&texts)), Some(4));
    }

    #[test]
    fn garbage_is_no_quota() {
        let read = |_: &Path| Some("what".to_owned());
        assert_eq!(tightest("", "", read), None);
        assert_eq!(tightest("nonsense\n::\n", "- - -\n1 2 3\n", read), None);
        let mounts = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        assert_eq!(tightest("0::/", mounts, read), None);
    }

    #[test]
    fn ranges_are_short() {
        assert_eq!(ranges(&[]), "no CPU");
        assert_eq!(ranges(&[4]), "CPU 4");
        assert_eq!(ranges(&[0, 1, 2, 3, 8, 10, 11]), "CPU 0-3, 8, 10-11");
    }

    /// A pinned thread runs where it was put and starts others there; afterwards it has its mask back,
    /// and so has one in which the pinning failed.
    #[test]
    fn pinning_ends_with_the_guard() {
        // Its own thread: the test's thread may run other tests.
        std::thread::spawn(|| {
            let before = Mask::current().unwrap();
            let cpu = *allowed()
                .unwrap()
                .last()
                .expect("this thread runs somewhere");
            let pinned = Pinned::to(cpu).unwrap();
            assert_eq!(allowed().unwrap(), [cpu]);
            let inherited = std::thread::spawn(|| allowed().unwrap()).join().unwrap();
            assert_eq!(inherited, [cpu]);
            let unpinned = std::thread::spawn(move || {
                before.set().unwrap();
                Mask::current().unwrap()
            });
            assert_eq!(unpinned.join().unwrap(), before);
            drop(pinned);
            assert_eq!(Mask::current().unwrap(), before);

            assert!(Pinned::to(usize::MAX).is_err());
            assert_eq!(Mask::current().unwrap(), before);
        })
        .join()
        .unwrap();
    }

    /// A CPU that is not there is an error that names it and those that are, and changes nothing.
    #[test]
    fn pinning_to_a_missing_cpu_is_an_error() {
        std::thread::spawn(|| {
            let before = Mask::current().unwrap();
            let missing = CpuSet::MAX_CPU - 1;
            assert!(
                !before.cpus().contains(&missing),
                "a machine with 1024 CPUs"
            );
            let error = Pinned::to(missing).unwrap_err();
            assert!(error.to_string().contains("CPU 1023"), "{error}");
            assert_eq!(Mask::current().unwrap(), before);
        })
        .join()
        .unwrap();
    }
}
