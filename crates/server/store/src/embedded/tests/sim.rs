//! A disk in memory that can fail, fill up and lose power.
//!
//! A failed sync does what Linux does (ext4 and XFS, since 4.16 as before): the pages that could not be written are
//! marked clean. They can be read back until the page cache lets go of them, and no later sync writes them.

use redb::StorageBackend;
use std::collections::BTreeSet;
use std::io::{self, Error, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard};

/// Storage is written in sectors; a write torn by a power loss is torn between them.
const SECTOR: usize = 512;
/// Space is given out in blocks.
const BLOCK: u64 = 4096;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    Sound,
    /// This operation fails, the next ones work.
    FailOnce(u64),
    /// From this operation on nothing works any more.
    PowerLoss(u64),
}

/// Clones share the disk.
#[derive(Clone, Debug)]
pub struct SimDisk(Arc<Mutex<Sim>>);

#[derive(Debug)]
struct Sim {
    /// What reads see.
    bytes: Vec<u8>,
    /// What a power loss leaves for certain.
    durable: Vec<u8>,
    /// Writes since the last sync, any of which a power loss may undo.
    unsynced: Vec<(usize, Vec<u8>)>,
    allocated: BTreeSet<u64>,
    full: bool,
    operations: u64,
    syncs_failed: u64,
    plan: Plan,
}

impl SimDisk {
    pub fn new(plan: Plan) -> Self {
        Self::with_bytes(Vec::new(), plan)
    }

    /// What reads see.
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    pub fn with_bytes(bytes: Vec<u8>, plan: Plan) -> Self {
        let blocks = (bytes.len() as u64).div_ceil(BLOCK);
        Self(Arc::new(Mutex::new(Sim {
            durable: bytes.clone(),
            bytes,
            unsynced: Vec::new(),
            allocated: (0..blocks).collect(),
            full: false,
            operations: 0,
            syncs_failed: 0,
            plan,
        })))
    }

    /// How many operations there were.
    pub fn operations(&self) -> u64 {
        self.lock().operations
    }

    /// Whether a sync failed, which the store cannot survive.
    pub fn lost_a_sync(&self) -> bool {
        self.lock().syncs_failed > 0
    }

    /// From now on nothing goes wrong.
    pub fn heal(&self) {
        self.lock().plan = Plan::Sound;
    }

    /// From now on no new block is given out, or it is again.
    pub fn set_full(&self, full: bool) {
        self.lock().full = full;
    }

    /// A sound disk with what a power loss leaves: of the writes since the last sync some are there,
    /// some are not, and some are torn, as `seed` decides.
    pub fn after_power_loss(&self, seed: u64) -> SimDisk {
        let sim = self.lock();
        let mut bytes = sim.durable.clone();
        bytes.resize(sim.bytes.len(), 0);
        write_some(&mut bytes, &sim.unsynced, seed);
        SimDisk::with_bytes(bytes, Plan::Sound)
    }

    /// The same disk as a new process finds it when it has synced the file and dropped what was cached of it: what
    /// was still dirty is written, what a failed sync called clean is not.
    pub fn after_restart(&self) -> SimDisk {
        let sim = self.lock();
        let mut bytes = sim.durable.clone();
        bytes.resize(sim.bytes.len(), 0);
        for (offset, data) in &sim.unsynced {
            bytes[*offset..*offset + data.len()].copy_from_slice(data);
        }
        SimDisk::with_bytes(bytes, Plan::Sound)
    }

    fn lock(&self) -> MutexGuard<'_, Sim> {
        self.0.lock().expect("no test panics while it holds the disk")
    }
}

/// Carries out some of the writes, some not, and some by a part, as `seed` decides.
fn write_some(bytes: &mut [u8], writes: &[(usize, Vec<u8>)], seed: u64) {
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for (offset, data) in writes {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let kept = match random % 3 {
            0 => 0,
            1 => data.len(),
            _ => (random as usize >> 8) % (data.len() / SECTOR + 1) * SECTOR,
        };
        let end = (offset + kept).min(bytes.len());
        let kept = end.saturating_sub(*offset);
        bytes[*offset..*offset + kept].copy_from_slice(&data[..kept]);
    }
}

impl Sim {
    fn step(&mut self) -> io::Result<()> {
        self.operations += 1;
        let fails = match self.plan {
            Plan::Sound => false,
            Plan::FailOnce(at) => self.operations == at,
            Plan::PowerLoss(at) => self.operations >= at,
        };
        if fails {
            return Err(Error::other("injected failure"));
        }
        Ok(())
    }
}

impl StorageBackend for SimDisk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut sim = self.lock();
        sim.step()?;
        let start = offset as usize;
        let data = sim
            .bytes
            .get(start..start + out.len())
            .ok_or(ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(data);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut sim = self.lock();
        sim.step()?;
        sim.bytes.resize(len as usize, 0);
        sim.unsynced
            .retain(|(offset, data)| offset + data.len() <= len as usize);
        sim.allocated.retain(|block| block * BLOCK < len);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut sim = self.lock();
        let outcome = sim.step();
        let Sim {
            bytes,
            durable,
            unsynced,
            operations,
            syncs_failed,
            plan,
            ..
        } = &mut *sim;
        if let (Err(error), Plan::FailOnce(_)) = (&outcome, *plan) {
            durable.resize(bytes.len(), 0);
            write_some(durable, unsynced, *operations);
            unsynced.clear();
            *syncs_failed += 1;
            return Err(Error::other(error.to_string()));
        }
        outcome?;
        durable.resize(bytes.len(), 0);
        for (offset, data) in unsynced.drain(..) {
            durable[offset..offset + data.len()].copy_from_slice(&data);
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut sim = self.lock();
        sim.step()?;
        let blocks = offset / BLOCK..(offset + data.len() as u64).div_ceil(BLOCK);
        if sim.full && blocks.clone().any(|block| !sim.allocated.contains(&block)) {
            return Err(ErrorKind::StorageFull.into());
        }
        sim.allocated.extend(blocks);
        let start = offset as usize;
        let end = start + data.len();
        if end > sim.bytes.len() {
            sim.bytes.resize(end, 0);
        }
        sim.bytes[start..end].copy_from_slice(data);
        sim.unsynced.push((start, data.to_vec()));
        Ok(())
    }
}
