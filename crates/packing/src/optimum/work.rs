//! How much may be tried: a number of steps, the same on every machine, and whatever else the caller wants to stop at.

pub(super) struct Work<'g> {
    left: u64,
    go_on: &'g mut dyn FnMut() -> bool,
    stopped: bool,
}

impl<'g> Work<'g> {
    pub fn new(steps: u64, go_on: &'g mut dyn FnMut() -> bool) -> Self {
        Work {
            left: steps,
            go_on,
            stopped: false,
        }
    }

    pub fn spend(&mut self, steps: u64) {
        self.left = self.left.saturating_sub(steps);
    }

    /// Whether there is time for this many steps more, which are then spent.
    pub fn go_on(&mut self, steps: u64) -> bool {
        self.stopped = self.stopped || self.left == 0 || !(self.go_on)();
        self.spend(steps);
        !self.stopped
    }
}
