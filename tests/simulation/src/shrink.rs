//! The smallest schedule that still fails.

use crate::plan::Plan;
use crate::world::run;

/// Leaves out what a violation doesn't need: steps, in ever smaller runs of them, and then members. What is left fails in the
/// same words, whatever the numbers in them. A plan that doesn't fail stays as it is.
pub fn shrink(plan: &Plan) -> Plan {
    let words = |plan: &Plan| {
        let violation = run(plan, false).violation?;
        Some(violation.split([',', ';']).next()?.chars().filter(|c| c.is_alphabetic() || *c == ' ').collect::<String>())
    };
    let Some(found) = words(plan) else { return plan.clone() };
    let fails = |plan: &Plan| words(plan).as_ref() == Some(&found);
    let mut least = plan.clone();
    let mut length = least.steps.len().div_ceil(2).max(1);
    loop {
        let mut from = 0;
        let before = least.steps.len();
        while from < least.steps.len() {
            let mut less = least.clone();
            less.steps.drain(from..(from + length).min(least.steps.len()));
            if fails(&less) {
                least = less;
            } else {
                from += length;
            }
        }
        if length == 1 && least.steps.len() == before {
            break;
        }
        length = (length / 2).max(1);
    }
    // The last ones only: the others go by their index.
    while least.members.len() > 1 {
        let mut less = least.clone();
        less.members.pop();
        let known = less.members.len();
        let names_it = |plan: &Plan| plan.steps.iter().any(|step| step.what.member().is_some_and(|it| it >= known));
        if names_it(&less) || !fails(&less) {
            break;
        }
        least = less;
    }
    least
}
