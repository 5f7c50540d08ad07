//! A drafter that is added to a program that is built already.

use std::path::PathBuf;

use lapidary_gemma::{OpenOptions, attach_at, open};

fn tiny(family: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../testdata/tiny").join(family)
}

#[test]
fn it_is_as_if_it_had_been_there_from_the_start() {
    for (target, drafter) in
        [("gemma4_text_dense", "gemma4_assistant"), ("gemma4_text_e", "gemma4_assistant_e")]
    {
        let with = OpenOptions { draft: Some(tiny(drafter)), ..OpenOptions::default() };
        let built = open(&tiny(target), &with).unwrap();
        let plain = open(&tiny(target), &OpenOptions::default()).unwrap();
        let attached = attach_at(&plain, &tiny(drafter), true).unwrap();
        assert_eq!(attached.description(), built.description(), "{target}");
        for name in built.weights().keys() {
            let [a, b] = [&attached, &built].map(|program| program.weight(name).unwrap().data);
            assert!(a == b, "{name}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let plain = open(&tiny("gemma4_text_e"), &OpenOptions::default()).unwrap();
    let refused = |program, drafter: &str| {
        attach_at(program, &tiny(drafter), true).err().unwrap().to_string()
    };
    let other = refused(&plain, "gemma4_assistant");
    assert!(other.contains("drafter") || other.contains("state"), "{other}");
    let attached = attach_at(&plain, &tiny("gemma4_assistant_e"), true).unwrap();
    assert!(refused(&attached, "gemma4_assistant_e").contains("already"));
}
