//! The ranks of a job's processes, from the variables that launchers set.

use std::ffi::OsString;

use crate::error::{Error, Result};

/// The launchers' variables for a process's rank, the number of processes, and the rank on its machine.
const LAUNCHERS: [[&str; 3]; 4] = [
    ["RANK", "WORLD_SIZE", "LOCAL_RANK"],
    [
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
    ],
    ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"],
    ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"],
];

/// This process's place among those of its job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranks {
    /// This process's rank, from 0.
    pub rank: u32,
    /// Number of processes.
    pub size: u32,
    /// This process's rank on its machine, which is the index of its GPU.
    pub local_rank: u32,
    /// Where the ranks meet: `tcp://host:port`, where rank 0 listens, or `file:///path`, a file that all
    /// ranks see and that does not exist yet.
    pub meet: String,
}

impl Ranks {
    /// The ranks from the launcher's variables: `torchrun`, `mpirun` of Open MPI, MPICH and Intel, or Slurm's
    /// `srun`. `None` without a launcher.
    ///
    /// The ranks meet at `WARPOOL_MEET` if it is set; otherwise at the host `MASTER_ADDR` (127.0.0.1 if
    /// unset) and the port after `MASTER_PORT` (29500 if unset), because `torchrun` itself listens at
    /// `MASTER_PORT`.
    ///
    /// ```
    /// use warpool::collective::Ranks;
    ///
    /// # fn main() -> warpool::Result<()> {
    /// let gpu = Ranks::from_env()?.map_or(0, |ranks| ranks.local_rank);
    /// # let _ = gpu;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] with the name of a variable whose value is invalid, or that is missing while others
    /// are set.
    pub fn from_env() -> Result<Option<Self>> {
        Self::from_variables(&|name| std::env::var_os(name))
    }

    fn from_variables(get: &dyn Fn(&'static str) -> Option<OsString>) -> Result<Option<Self>> {
        let set = |name: &&&'static str| get(name).is_some_and(|value| !value.is_empty());
        let Some(names) = LAUNCHERS
            .iter()
            .find(|names| names.iter().any(|name| set(&name)))
        else {
            return Ok(None);
        };
        let [rank, size] = [names[0], names[1]].map(|name| number(get, name));
        let (rank, size) = (rank?, size?);
        // Not every launcher sets it; on one machine it equals the rank.
        let local_rank = match set(&&names[2]) {
            true => number(get, names[2])?,
            false => rank,
        };
        let ranks = Self {
            rank,
            size,
            local_rank,
            meet: meeting_place(get)?,
        };
        ranks.check().map(|()| Some(ranks))
    }

    pub(super) fn check(&self) -> Result<()> {
        if self.rank < self.size {
            return Ok(());
        }
        let why = format!(
            "rank {} of {}: ranks are numbered from 0",
            self.rank, self.size
        );
        Err(Error::invalid("ranks", why))
    }
}

fn text(
    get: &dyn Fn(&'static str) -> Option<OsString>,
    name: &'static str,
) -> Result<Option<String>> {
    match get(name).filter(|value| !value.is_empty()) {
        None => Ok(None),
        Some(value) => value
            .into_string()
            .map(Some)
            .map_err(|value| Error::invalid(name, format!("{value:?} is not text"))),
    }
}

fn number(get: &dyn Fn(&'static str) -> Option<OsString>, name: &'static str) -> Result<u32> {
    let Some(text) = text(get, name)? else {
        return Err(Error::invalid(
            name,
            "it is not set, but other variables of the launcher are",
        ));
    };
    text.parse()
        .map_err(|_| Error::invalid(name, format!("{text:?} is not the number of a process")))
}

fn meeting_place(get: &dyn Fn(&'static str) -> Option<OsString>) -> Result<String> {
    if let Some(place) = text(get, "WARPOOL_MEET")? {
        return Ok(place);
    }
    let host = text(get, "MASTER_ADDR")?.unwrap_or_else(|| String::from("127.0.0.1"));
    let port = text(get, "MASTER_PORT")?.unwrap_or_else(|| String::from("29500"));
    let next = port
        .parse::<u16>()
        .ok()
        .and_then(|port| port.checked_add(1));
    let next = next.ok_or_else(|| {
        Error::invalid(
            "MASTER_PORT",
            format!("{port:?} is not a port with a port after it"),
        )
    })?;
    Ok(format!("tcp://{host}:{next}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<Ranks>> {
        let find = |name: &str| variables.iter().find(|(its, _)| *its == name);
        Ranks::from_variables(&|name| find(name).map(|(_, value)| OsString::from(value)))
    }

    #[test]
    fn every_launcher_says_who_a_process_is() {
        for [rank, size, local] in LAUNCHERS {
            let ranks = of(&[(rank, "5"), (size, "8"), (local, "1")])
                .unwrap()
                .unwrap();
            assert_eq!((ranks.rank, ranks.size, ranks.local_rank), (5, 8, 1));
            assert_eq!(ranks.meet, "tcp://127.0.0.1:29501");
            let alone = of(&[(rank, "1"), (size, "2")]).unwrap().unwrap();
            assert_eq!(alone.local_rank, 1, "{rank}");
        }
        assert_eq!(of(&[("RANK", "")]).unwrap(), None);
        assert_eq!(of(&[("MASTER_PORT", "1")]).unwrap(), None);
    }

    #[test]
    fn a_variable_that_cannot_be_is_an_error_that_names_it() {
        let good = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "node0")];
        let with = |more: (&'static str, &'static str)| of(&[&[more], &good[..]].concat());
        assert_eq!(
            with(("MASTER_PORT", "1000")).unwrap().unwrap().meet,
            "tcp://node0:1001"
        );
        assert_eq!(
            with(("WARPOOL_MEET", "file:///x")).unwrap().unwrap().meet,
            "file:///x"
        );
        for (name, value) in [
            ("RANK", "-1"),
            ("WORLD_SIZE", "two"),
            ("LOCAL_RANK", "0x1"),
            ("MASTER_PORT", "65535"),
        ] {
            let error = with((name, value)).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains(value), "{error}");
        }
        let alone = of(&[("RANK", "0")]).unwrap_err().to_string();
        assert!(alone.contains("WORLD_SIZE"), "{alone}");
        let beyond = of(&[("RANK", "2"), ("WORLD_SIZE", "2")])
            .unwrap_err()
            .to_string();
        assert!(beyond.contains("rank 2 of 2"), "{beyond}");
    }
}
