//! Opening, planning, loading and unloading.

use lapidary::{
    DeviceChoice, DeviceId, ErrorCode, Event, Load, Modality, Model, Precision, Towers,
};

use crate::{engine, load, pebble, story};

#[test]
fn the_built_in_model_is_known_by_its_name() {
    let model = Model::open("pebble").unwrap();
    assert!(model.is_pebble() && model.name() == "pebble");
    assert_eq!(model.modalities(), [Modality::Image, Modality::Video]);
    assert!(model.check_bytes().unwrap());
    let e = Model::open("./no/such/model.gguf").unwrap_err();
    assert_eq!(e.code(), ErrorCode::NotFound);
    assert!(e.to_string().contains("pebble"), "{e}");
}

#[test]
fn a_plan_says_what_loading_takes() {
    let model = pebble();
    let plan = load().sequences(4).plan(&model).unwrap();
    assert!(plan.fits());
    assert_eq!((plan.backend, plan.context, plan.sequences), ("cpu", 512, 4));
    assert_eq!(plan.device.id, DeviceId::new("cpu", 0));
    assert!(plan.memory.weights > 0 && plan.memory.kv > 0);
    assert_eq!(plan.positions, 4 * 512);
    let shown = plan.to_string();
    assert!(shown.contains("pebble on cpu:0") && shown.contains("4 sequences of 512"), "{shown}");
    // Without towers there are fewer weights.
    let text = load().text_only().plan(&model).unwrap();
    assert!(text.memory.weights < plan.memory.weights);
    assert!(!text.methods.contains(&"vision".to_string()));
    assert_eq!(load().towers(Towers::any()).plan(&model).unwrap().methods, plan.methods);
}

#[test]
fn a_budget_of_kv_memory_lowers_the_pool_and_everybody_is_answered() {
    let model = pebble();
    let whole = load().sequences(4).plan(&model).unwrap().memory.kv;
    let one = load().sequences(1).plan(&model).unwrap().memory.kv;
    assert!(one < whole);
    let tight = load().sequences(4).kv_memory(one + (whole - one) / 2);
    let plan = tight.plan(&model).unwrap();
    assert!(plan.memory.kv <= one + (whole - one) / 2 && plan.memory.kv >= one);
    assert!(plan.positions < 4 * 512 && plan.to_string().contains("at once"));
    let few = model.load(load().sequences(4).kv_memory(one)).unwrap();
    let answers: Vec<_> = (0..8).map(|_| few.answer(story()).unwrap()).collect();
    let want = engine().answer(story()).unwrap().text().unwrap();
    for answer in answers {
        assert_eq!(answer.text().unwrap(), want);
    }
    let e = load().kv_memory(1000).plan(&model).unwrap_err();
    assert_eq!(e.code(), ErrorCode::InvalidArgument);
    assert!(e.to_string().contains("shorter context"), "{e}");
}

#[test]
fn devices_are_chosen_by_name_and_number() {
    let model = pebble();
    for choice in ["0", "cpu:0"] {
        let plan = load().device(choice.parse().unwrap()).plan(&model).unwrap();
        assert_eq!(plan.device.id.to_string(), "cpu:0");
    }
    let plan = Load::default().device("reference:0".parse().unwrap()).plan(&model).unwrap();
    assert_eq!(plan.backend, "reference");
    for (load, said) in [
        (load().device(DeviceChoice::Index(7)), "cpu:7"),
        (load().device("reference:0".parse().unwrap()), "not one of the backend"),
        (load().backend("abacus"), "abacus"),
        (load().context(0), "context"),
        (load().context(1 << 30), "context"),
        (load().sequences(0), "sequences"),
    ] {
        let e = load.plan(&model).unwrap_err();
        assert_eq!(e.code(), ErrorCode::InvalidArgument, "{e}");
        assert!(e.to_string().contains(said), "{e}");
    }
    for wrong in ["", "vulkan", "vulkan:", ":1", "-1"] {
        assert!(wrong.parse::<DeviceChoice>().is_err(), "{wrong}");
    }
    assert!(lapidary::devices().iter().any(|b| b.name == "cpu" && b.devices.is_ok()));
}

#[test]
fn m10_unloaded_engines_say_so_and_models_load_again() {
    let model = pebble();
    // The engine waits for its reader, whom nothing but unloading can end.
    let engine = model.load(load().events(1).patience(std::time::Duration::MAX)).unwrap();
    let other = engine.clone();
    let mut answer = engine.answer(story().ignore_eos().max_tokens(400)).unwrap();
    assert!(matches!(answer.next(), Some(Ok(Event::Text(_)))));
    engine.unload();
    let end = answer.find_map(Result::err).expect("it ended early");
    assert_eq!(end.code(), ErrorCode::Unloaded);
    for e in [other.answer(story()).map(drop), other.forget()] {
        assert_eq!(e.unwrap_err().code(), ErrorCode::Unloaded);
    }
    engine.unload();
    let want = crate::engine().answer(story()).unwrap().text().unwrap();
    let again = model.load(load()).unwrap();
    assert_eq!(again.answer(story()).unwrap().text().unwrap(), want);
}

#[test]
fn an_answer_outlives_its_engines_last_handle() {
    let answer = pebble().load(load()).unwrap().answer(story()).unwrap();
    assert_eq!(answer.text().unwrap(), engine().answer(story()).unwrap().text().unwrap());
}

#[test]
fn a_quantised_model_is_smaller_and_answers() {
    let model = pebble().dequantised().unwrap();
    let small = model.quantised("int8").unwrap();
    assert!(small.program().weight_bytes() < model.program().weight_bytes());
    assert!(small.n_quantised() > 0 && model.n_quantised() == 0);
    let engine = small.load(load().precision(Precision::Exact)).unwrap();
    assert!(!engine.answer(story()).unwrap().text().unwrap().is_empty());
    assert_eq!(pebble().quantised("int0").unwrap_err().code(), ErrorCode::InvalidArgument);
}

#[test]
fn handles_may_go_anywhere() {
    fn anywhere<T: Send + Sync + Clone + 'static>() {}
    anywhere::<lapidary::Engine>();
    anywhere::<Model>();
    fn sent<T: Send + 'static>() {}
    sent::<lapidary::Answer>();
    sent::<lapidary::Conversation>();
}
