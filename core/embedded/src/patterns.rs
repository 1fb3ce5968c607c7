//! Topic patterns, which a standalone broker takes in CONSUME and every broker in the commands of an existing group.

/// Whether a topic is a pattern rather than a name.
pub(crate) fn is_pattern(topic: &str) -> bool {
    topic.contains(['*', '?'])
}

/// Whether a pattern matches a whole name: `*` stands for any run of characters, `?` for one.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if !is_pattern(pattern) {
        return pattern == name;
    }
    let (pattern, name): (Vec<char>, Vec<char>) = (pattern.chars().collect(), name.chars().collect());
    let (mut p, mut n) = (0, 0);
    // Where the last `*` stands and how far into the name it reaches so far: what doesn't match makes it reach further.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == '?' || *c == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match &mut star {
                Some((at, reach)) => {
                    *reach += 1;
                    (p, n) = (*at + 1, *reach);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, name) in [("*", ""), ("*", "a"), ("a*c", "abbc"), ("a?c", "abc"), ("*b*b", "abab"), ("ž?*", "žb")]
        {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("?", ""), ("a?c", "ac"), ("a*c", "abcd"), ("a", "b"), ("*b", "ba")] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }
}
