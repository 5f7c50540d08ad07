//! Which backend a model runs on, by a written order: what is asked for, then what the table says of
//! the platform, then what `auto` finds. A backend that was asked for and is not there is an error,
//! never another one.

/// A backend of this build as it is on this machine.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Its name.
    pub name: String,
    /// Why it can't be used here, if it can't.
    pub unusable: Option<String>,
}

/// A backend, and why it is this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// Its name.
    pub backend: String,
    /// Why, one reason for each step of the order that was taken.
    pub reasons: Vec<String>,
}

/// Chooses. `auto` is what the library would take by itself, or why it would take none.
pub fn choose(
    asked: Option<&str>,
    platform: (&str, &[String]),
    candidates: &[Candidate],
    auto: Result<String, String>,
) -> Result<Choice, String> {
    let find = |name: &str| candidates.iter().find(|candidate| candidate.name == name);
    let mut reasons = vec![];
    if let Some(name) = asked {
        return match find(name) {
            None => {
                let there: Vec<&str> = candidates.iter().map(|c| c.name.as_str()).collect();
                Err(format!("this build has no backend `{name}`; it has {}", there.join(", ")))
            }
            Some(Candidate { unusable: Some(why), .. }) => {
                Err(format!("{name} can't be used: {why}"))
            }
            Some(_) => {
                reasons.push(format!("{name} was asked for"));
                Ok(Choice { backend: name.into(), reasons })
            }
        };
    }
    reasons.push("no backend was asked for".into());
    let (system, defaults) = platform;
    if defaults.is_empty() {
        reasons.push(format!("the table names none for {system}"));
    }
    for name in defaults {
        match find(name) {
            None => {
                reasons.push(format!("{name} is the default on {system}, but not in this build"))
            }
            Some(Candidate { unusable: Some(why), .. }) => {
                reasons
                    .push(format!("{name} is the default on {system}, but can't be used: {why}"));
            }
            Some(_) => {
                reasons.push(format!("{name} is the default on {system}"));
                return Ok(Choice { backend: name.clone(), reasons });
            }
        }
    }
    match auto {
        Ok(name) => {
            reasons.push(format!("auto found {name}"));
            Ok(Choice { backend: name, reasons })
        }
        Err(why) => Err(format!("no backend can be used: {why}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(name: &str, unusable: Option<&str>) -> Candidate {
        Candidate { name: name.into(), unusable: unusable.map(String::from) }
    }

    #[test]
    fn the_order_is_asked_then_platform_then_auto_then_an_error() {
        let here =
            [candidate("mlx", Some("no Metal")), candidate("metal", None), candidate("cpu", None)];
        let linux = ("linux", &[][..]);
        let auto = || Ok("cpu".to_string());
        let backend = |choice: Result<Choice, String>| choice.map(|c| c.backend);

        assert_eq!(backend(choose(Some("cpu"), linux, &here, auto())), Ok("cpu".into()));
        // What was asked for is never replaced.
        let refused = choose(Some("mlx"), linux, &here, auto()).unwrap_err();
        assert!(refused.contains("no Metal"), "{refused}");
        let refused = choose(Some("cuda"), linux, &here, auto()).unwrap_err();
        assert!(refused.contains("it has mlx, metal, cpu"), "{refused}");

        let defaults = ["mlx".to_string(), "metal".to_string()];
        let phone = choose(None, ("ios", &defaults), &here, auto()).unwrap();
        assert_eq!(phone.backend, "metal");
        assert!(phone.reasons.iter().any(|r| r.contains("mlx is the default on ios, but")));
        let laptop = choose(None, linux, &here, auto()).unwrap();
        assert_eq!(laptop.backend, "cpu");
        assert_eq!(laptop.reasons.len(), 3);

        assert!(choose(None, linux, &[], Err("nothing is there".into())).is_err());
    }
}
