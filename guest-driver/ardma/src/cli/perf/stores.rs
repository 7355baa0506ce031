//! Measurements of stores and loads.

use super::{By, FILL, Run, Times};
use crate::cli::Failure;
use ardma::{Adaptor, Direction, RemoteWindow};

pub fn measure(adaptor: &Adaptor, run: &Run) -> Result<Times, Failure> {
    let window = adaptor.map(run.place, run.size)?;
    let size = usize::try_from(run.size).unwrap_or(usize::MAX);
    let mut bytes = vec![FILL; size];
    let mut back = vec![0; size];
    // Errors of an earlier program are no answer to this one.
    check(&window, None)?;
    let direction = if run.test.writes() { Direction::Write } else { Direction::Read };
    let lapses = adaptor.lapses()?;
    let times = Times::of(run, || {
        match direction {
            Direction::Write => window.write_bytes(0, &bytes)?,
            Direction::Read => window.read_bytes(0, &mut bytes)?,
        }
        match run.by {
            By::Checked => check(&window, Some(direction))?,
            By::Verified => {
                window.read_bytes(0, &mut back)?;
                crate::cli::copy::compare(run.place, 0, &bytes, &back)?;
            }
            By::Stores | By::Engine => {}
        }
        Ok(())
    })?;
    check(&window, Some(direction))?;
    if adaptor.lapses()? != lapses {
        return Err(ardma::Error::Reset { direction, place: run.place, length: run.size }.into());
    }
    Ok(times)
}

/// Checks every block. An error of the direction is the measurement's.
fn check(window: &RemoteWindow, direction: Option<Direction>) -> Result<(), Failure> {
    for part in window.blocks(0, window.length()) {
        let status = window.check(part.offset)?;
        let Some(direction) = direction.filter(|&direction| !status.code(direction).is_ok()) else {
            continue;
        };
        let place = window.place().plus(part.offset);
        return Err(
            ardma::Error::Access { direction, place, length: part.length, status, attempts: 1 }.into()
        );
    }
    Ok(())
}
