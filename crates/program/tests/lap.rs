//! The `.lap` file: round trips and what its layout promises.

mod sample;

use lapidary_program::{FileBytes, Part, lap};
use safetensors::SafeTensors;

#[test]
fn round_trip_is_exact() {
    let folder = tempfile::tempdir().unwrap();
    let first = folder.path().join("a.lap");
    let second = folder.path().join("b.lap");
    let program = sample::program();
    lap::write(&program, &first, &mut |_, _| true).unwrap();
    for mmap in [true, false] {
        let back = lap::open(&first, mmap).unwrap();
        assert_eq!(back.description(), program.description());
        assert_eq!(
            back.blob("chat_template.jinja").unwrap(),
            program.blob("chat_template.jinja").unwrap()
        );
        for (name, decl) in program.weights() {
            for part in Part::ALL.into_iter().filter(|p| decl.part_bytes(*p) > 0) {
                let want = program.store().part(name, part).unwrap();
                let got = back.store().part(name, part).unwrap();
                assert_eq!(got, want, "{name} {part:?}");
            }
        }
        lap::write(&back, &second, &mut |_, _| true).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap());
    }
}

#[test]
fn any_safetensors_reader_opens_it_and_tensors_are_aligned() {
    let bytes = sample::file();
    let (n, header) = SafeTensors::read_metadata(&bytes).unwrap();
    assert_eq!((n + 8) % 64, 0, "the data section is aligned");
    let info = header.metadata().clone().unwrap();
    assert_eq!(info["format"], "lapidary");
    let file = SafeTensors::deserialize(&bytes).unwrap();
    assert!(file.tensor("q:q4").is_ok() && file.tensor("v:super_scale").is_ok());
    for (name, tensor) in header.tensors().into_iter().filter(|(n, _)| n != "lapidary/blake3.json")
    {
        let (start, end) = tensor.data_offsets;
        let align = 1usize << (end - start).trailing_zeros().min(6);
        assert_eq!(start % align, 0, "{name} starts at {start}");
    }
}

#[test]
fn hashes_find_a_changed_byte() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lap");
    lap::write(&sample::program(), &path, &mut |_, _| true).unwrap();
    lap::check_hashes(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let (n, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let place = n + 8 + header.tensors()["embed"].data_offsets.0 + 3;
    bytes[place] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    lap::check_hashes_in(&FileBytes::from_vec(sample::file())).unwrap();
    for said in [lap::check_hashes(&path), lap::check_hashes_in(&FileBytes::from_vec(bytes))] {
        let said = said.unwrap_err().to_string();
        assert!(said.contains("`embed`"), "{said}");
    }
}

#[test]
fn progress_ends_at_the_total() {
    let folder = tempfile::tempdir().unwrap();
    let mut seen = (0, 1);
    lap::write(&sample::program(), &folder.path().join("a.lap"), &mut |done, total| {
        assert!(done >= seen.0 && done <= total);
        seen = (done, total);
        true
    })
    .unwrap();
    assert_eq!(seen.0, seen.1);
}

#[test]
fn reading_from_memory_is_the_same() {
    let program = lap::from_bytes(FileBytes::from_vec(sample::file())).unwrap();
    assert_eq!(program.description(), sample::program().description());
}

#[test]
fn bytes_of_the_running_program_are_used_where_they_are() {
    let bytes: &'static [u8] = sample::file().leak();
    let program = lap::from_bytes(FileBytes::from_static(bytes)).unwrap();
    assert_eq!(program.description(), sample::program().description());
    assert!(program.store().fingerprint().is_none(), "nothing of it is kept on disk");
    for (name, decl) in program.weights() {
        for part in Part::ALL.into_iter().filter(|p| decl.part_bytes(*p) > 0) {
            let got = program.store().part(name, part).unwrap();
            assert!(bytes.as_ptr_range().contains(&got.as_ptr()), "{name} {part:?} is a copy");
        }
        program.store().forget(name);
    }
}

/// Tensors in another order, as another tool may save them, are the same tensors.
#[test]
fn a_file_that_another_tool_saved_again_checks() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.lap");
    let bytes = sample::file();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
    let again = safetensors::serialize(file.tensors(), header.metadata().clone()).unwrap();
    assert_ne!(again, bytes);
    std::fs::write(&path, again).unwrap();
    lap::check_hashes(&path).unwrap();
    assert_eq!(lap::open(&path, true).unwrap().description(), sample::program().description());
}
