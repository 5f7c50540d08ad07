//! `lapidary logits`.

use std::fs;

use crate::support::{
    copy_of, difference, edit_tensor, f32s, gguf, i64s, joined, lapidary, logits, names, run, temp,
    tiny,
};

#[test]
fn logits_and_greedy_are_those_of_transformers_on_every_backend() {
    let dir = temp();
    for family in ["gemma3_text", "gemma4_text_e"] {
        let reference = tiny(family).join("reference.safetensors");
        let (_, ids) = i64s(&reference, "input_ids");
        let (shape, want) = f32s(&reference, "logits");
        let (_, greedy) = i64s(&reference, "greedy");
        let n = greedy.len().to_string();
        for backend in ["cpu", "reference"] {
            let out = dir.path().join(format!("{family}.{backend}.safetensors"));
            let more = ["--backend", backend, "--greedy", &n];
            logits(&tiny(family), &joined(&ids, ","), &more, &out);
            let (got_shape, got) = f32s(&out, "logits");
            assert_eq!(got_shape, shape[1..], "{family} on {backend}");
            let worst = difference(&got, &want);
            assert!(worst < 1e-4, "{family} on {backend}: {worst}");
            assert_eq!(i64s(&out, "greedy"), (vec![greedy.len()], greedy.clone()));
        }
    }
}

#[test]
fn without_greedy_the_tensor_is_there_and_empty() {
    let dir = temp();
    let out = logits(&tiny("gemma3_text"), "2", &["-q"; 0], &dir.path().join("out.safetensors"));
    assert_eq!(i64s(&out, "greedy"), (vec![0], vec![]));
    assert_eq!(names(dir.path()), ["out.safetensors"]);
}

#[test]
fn rows_last_is_the_last_row_of_all() {
    let dir = temp();
    let model = tiny("gemma4_text_dense");
    let (_, ids) = i64s(&model.join("reference.safetensors"), "input_ids");
    let ids = joined(&ids, ",");
    let all = logits(&model, &ids, &["--rows", "all"], &dir.path().join("all"));
    let last = logits(&model, &ids, &["--rows", "last"], &dir.path().join("last"));
    let (shape, all) = f32s(&all, "logits");
    let (last_shape, last) = f32s(&last, "logits");
    assert_eq!(last_shape, [1, shape[1]]);
    assert!(difference(&last, &all[all.len() - shape[1]..]) < 1e-5);
}

#[test]
fn chunks_of_any_length_give_the_same_logits() {
    let dir = temp();
    for family in ["gemma3_text", "gemma4_text_e"] {
        let (_, ids) = i64s(&tiny(family).join("reference.safetensors"), "input_ids");
        let ids = joined(&ids, ",");
        let whole = logits(&tiny(family), &ids, &["--rows", "all"], &dir.path().join("whole"));
        let (_, whole) = f32s(&whole, "logits");
        for chunk in ["1", "3", "7", "64"] {
            let out = dir.path().join(chunk);
            let parts = logits(&tiny(family), &ids, &["--chunk", chunk], &out);
            let worst = difference(&f32s(&parts, "logits").1, &whole);
            assert!(worst < 1e-5, "{family}, chunks of {chunk}: {worst}");
        }
    }
}

#[test]
fn ids_may_be_written_in_many_ways() {
    let dir = temp();
    let model = tiny("gemma3_text");
    let want = fs::read(logits(&model, "2,17,300,5", &["-q"; 0], &dir.path().join("want")));
    let want = want.expect("written");
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_string()
    };
    let ways = [
        "2 17 300 5".to_string(),
        "[2, 17, 300, 5]".to_string(),
        "2,17,300,5,".to_string(),
        file("ids.json", "[2, 17,\n 300, 5]\n"),
        file("ids.txt", "2\n17\n300\n5\n"),
        file("ids.crlf", "2\r\n17\r\n300\r\n5\r\n"),
        // A file may have a name that looks like ids.
        file("7", "2 17 300 5"),
    ];
    for way in &ways {
        let out = logits(&model, way, &["-q"; 0], &dir.path().join("got"));
        assert_eq!(fs::read(out).expect("written"), want, "{way}");
    }
}

#[test]
fn bad_ids_are_refused_and_leave_nothing_behind() {
    let dir = temp();
    let out = dir.path().join("out");
    let listed = temp();
    let bytes = listed.path().join("bytes");
    fs::write(&bytes, [0xff, 0xfe, 0x00]).expect("written");
    let words = listed.path().join("words");
    fs::write(&words, "2 three 4").expect("written");
    let bytes = bytes.to_str().expect("UTF-8");
    let words = words.to_str().expect("UTF-8");
    let vocabulary = "token id 317 is outside the vocabulary of 317";
    let cases: &[(&str, i32, &str)] = &[
        ("2,317", 2, vocabulary),
        ("2,4294967295", 2, "token id 4294967295 is outside"),
        ("2,4294967296", 2, "`4294967296` is not a token id"),
        ("", 2, "there are no token ids"),
        (" ,[] ", 2, "there are no token ids"),
        ("2,x,3", 2, "`x` is not a token id"),
        ("x,2,3", 5, "--tokens takes token ids"),
        ("no/such/file.json", 5, "no/such/file.json"),
        (words, 2, "`three` is not a token id"),
        (bytes, 2, "is not UTF-8 text"),
    ];
    for (tokens, code, why) in cases {
        let mut command = lapidary("logits");
        command.arg(tiny("gemma3_text")).arg(format!("--tokens={tokens}")).arg("-o").arg(&out);
        run(&mut command).refused(*code, &[why]);
        assert!(names(dir.path()).is_empty(), "{tokens}: {:?}", names(dir.path()));
    }
}

#[test]
fn what_does_not_fit_in_the_context_is_refused_with_both_numbers() {
    let dir = temp();
    let model = tiny("gemma4_text_dense");
    let out = dir.path().join("out");
    let mut command = lapidary("logits");
    command.arg(&model).args(["--tokens", "2", "--greedy", "512", "-o"]).arg(&out);
    run(&mut command).refused(2, &["513", "512"]);
    let ids = joined(&[7; 513], ",");
    let mut command = lapidary("logits");
    run(command.arg(&model).args(["--tokens", &ids, "-o"]).arg(&out)).refused(2, &["513", "512"]);
    assert!(names(dir.path()).is_empty());
    // The last position of the context is filled, not left over.
    let full = logits(&model, "2", &["--greedy", "511"], &out);
    assert_eq!(i64s(&full, "greedy").0, [511]);
}

#[test]
fn a_place_that_can_not_be_written_is_refused_before_the_work() {
    let dir = temp();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("written");
    let missing = dir.path().join("missing").join("out");
    let inside_a_file = file.join("out");
    let cases = [
        (missing.as_path(), 5, "missing"),
        (inside_a_file.as_path(), 2, "is a file"),
        (dir.path(), 2, "is a folder; name a file"),
    ];
    for (out, code, why) in cases {
        let mut command = lapidary("logits");
        command.arg(tiny("gemma3_text")).args(["--tokens", "2", "-o"]).arg(out);
        let ran = run(&mut command).refused(code, &[why]);
        assert!(!ran.stderr.contains(".lapidary-"), "{}", ran.stderr);
        assert_eq!(names(dir.path()), ["file"]);
    }
}

#[test]
fn a_gguf_and_its_lap_and_an_unmapped_file_give_the_same_bytes() {
    let dir = temp();
    let lap = crate::support::export(&gguf(), &dir.path().join("model.lap"));
    let mut files = Vec::new();
    for (i, (model, more)) in
        [(gguf(), vec![]), (lap.clone(), vec![]), (lap, vec!["--no-mmap"])].iter().enumerate()
    {
        let out = dir.path().join(i.to_string());
        files.push(fs::read(logits(model, "2,9,40,7", more, &out)).expect("written"));
    }
    assert!(files.iter().all(|f| *f == files[0]));
}

#[test]
fn f9_m6_weights_that_are_not_finite_name_the_first_op() {
    let dir = temp();
    let model = copy_of("gemma3_text", dir.path());
    let weight = "model.layers.2.mlp.down_proj.weight";
    edit_tensor(&model.join("model.safetensors"), weight, |bytes| {
        bytes[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    for backend in ["cpu", "reference"] {
        for more in [vec!["--rows", "all"], vec!["--rows", "last"], vec!["--greedy", "3"]] {
            let mut command = lapidary("logits");
            command.arg(&model).args(["--tokens", "2,9,40", "--backend", backend]).args(&more);
            run(command.arg("-o").arg(dir.path().join("out")))
                .refused(1, &["non-finite logits", "model.layers.2.mlp.down_proj"]);
            assert_eq!(names(dir.path()), ["gemma3_text"], "{backend} {more:?}");
        }
    }
}

/// As in transformers: the ids of Gemma 4's media are read as padding where there are none, and the id
/// of Gemma 3's as itself.
#[test]
fn ids_of_media_without_media_are_padding_for_gemma_4() {
    let dir = temp();
    let row = |family: &str, ids: &str| {
        let out = logits(&tiny(family), ids, &["--backend", "cpu"], &dir.path().join("out"));
        f32s(&out, "logits").1
    };
    let same = |a: &[f32], b: &[f32]| difference(a, b) == 0.0;
    // Of images, of audio and of videos.
    for (family, ids) in [("gemma4_mm_e", [283, 287, 284]), ("gemma4_unified", [279, 283, 280])] {
        let padding = row(family, "2,0,5");
        for id in ids {
            assert!(same(&row(family, &format!("2,{id},5")), &padding), "{family}: {id}");
        }
        assert!(!same(&row(family, "2,6,5"), &padding));
    }
    assert!(!same(&row("gemma3_mm", "2,301,5"), &row("gemma3_mm", "2,0,5")));
}
