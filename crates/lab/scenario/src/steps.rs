//! Which changes does the scenario make, and in what order?
//!
//! The same seed gives the same order, so that two runs put the same load on a cluster.

/// How many changes of each kind.
#[derive(Clone, Copy, Debug)]
pub struct Counts {
    pub flips: usize,
    /// Services that are created, changed and deleted.
    pub lives: usize,
    pub rolls: usize,
    /// Scale-ups from nothing.
    pub scale_ups: usize,
    /// Pods whose readiness is flipped.
    pub pods: usize,
}

/// One thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A pod changes its mind about being ready.
    Flip(usize),
    /// A Service comes, changes its port and goes; this pod is behind it.
    Life(usize),
    /// All pods of a Deployment are replaced.
    Roll,
    /// A Deployment without pods gets some.
    ScaleUp,
}

/// All steps, in a random order that follows from the seed.
pub fn steps(counts: Counts, random: &mut fastrand::Rng) -> Vec<Step> {
    let pods = counts.pods.max(1);
    let mut steps: Vec<Step> = (0..counts.flips)
        .map(|number| Step::Flip(number % pods))
        .collect();
    steps.extend((0..counts.lives).map(|number| Step::Life(number % pods)));
    steps.extend((0..counts.rolls).map(|_| Step::Roll));
    steps.extend((0..counts.scale_ups).map(|_| Step::ScaleUp));
    random.shuffle(&mut steps);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts {
        flips: 20,
        lives: 5,
        rolls: 3,
        scale_ups: 2,
        pods: 6,
    };

    fn of(seed: u64) -> Vec<Step> {
        steps(COUNTS, &mut fastrand::Rng::with_seed(seed))
    }

    #[test]
    fn a_seed_decides_the_order_and_nothing_is_left_out() {
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        let count = |is: fn(&Step) -> bool| of(7).iter().filter(|step| is(step)).count();
        assert_eq!(count(|step| matches!(step, Step::Flip(_))), 20);
        assert_eq!(count(|step| matches!(step, Step::Life(_))), 5);
        assert_eq!(count(|step| *step == Step::Roll), 3);
        assert_eq!(count(|step| *step == Step::ScaleUp), 2);
    }
}
