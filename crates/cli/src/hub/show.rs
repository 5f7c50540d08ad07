//! `lapidary show`.

use std::io::Write;

use anyhow::Result;
use indicatif::HumanBytes;
use lapidary::hub::{Choice, Entry, Format, Found, Hub, Name, Variant};
use lapidary::{Load, Plan};
use serde_json::{Value, json};

use super::{AUTO, is_absent, name};
use crate::args::hub::ShowArgs;
use crate::exit::Usage;

/// Prints what a name stands for, and what would run it. Asks nothing of the network.
pub fn run(args: &ShowArgs) -> Result<()> {
    let name = name(&args.name)?;
    let hub = Hub::from_env()?;
    let found = match hub.find(&name) {
        Ok(found) => Ok(found),
        Err(e) if is_absent(&e) => Err(e.to_string()),
        Err(e) => return Err(e.into()),
    };
    let asked = Some(args.backend.as_str()).filter(|asked| *asked != AUTO);
    let choice = match lapidary::choose_backend(asked) {
        // What was asked for and can't be had is an error, never another backend.
        Err(why) if asked.is_some() => return Err(Usage(why).into()),
        choice => choice,
    };
    let known = match &name {
        Name::Known { entry, variant, .. } => Some((*entry, *variant)),
        Name::Repo { .. } => None,
    };
    let plan = match (&choice, known) {
        (Ok(choice), Some((entry, variant))) => {
            let load = Load::default().backend(&choice.backend).sequences(1);
            lapidary::plan_of(entry, variant, &load)
        }
        _ => None,
    };
    let shown = Shown { name: &name, found, choice, known, plan };
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &shown.as_json())?;
        writeln!(out)?;
    } else {
        shown.write(&mut out)?;
    }
    Ok(out.flush()?)
}

struct Shown<'a> {
    name: &'a Name,
    found: Result<Found, String>,
    choice: Result<Choice, String>,
    known: Option<(&'static Entry, &'static Variant)>,
    plan: Option<lapidary::Result<Plan>>,
}

impl Shown<'_> {
    fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        match self.known {
            Some((entry, variant)) => {
                writeln!(out, "{} is {}: {}", self.name, entry.title, what(variant))?;
                writeln!(out, "  parameters  {:.2} billion", entry.params as f64 / 1e9)?;
                writeln!(out, "  takes       {}", entry.input.join(", "))?;
                let gate = if entry.gated { "; must be accepted before a download" } else { "" };
                writeln!(out, "  licence     {}{gate}", entry.licence.name())?;
                if let Some(drafter) = entry.drafter() {
                    writeln!(out, "  drafter     {}", entry.name_of(drafter))?;
                }
                writeln!(out, "  variants")?;
                for other in &entry.variants {
                    let mark = if other.name == variant.name { "*" } else { " " };
                    let size = entry.download_bytes(other);
                    let size = size.map_or(String::new(), |n| format!(", about {}", HumanBytes(n)));
                    let name = entry.name_of(other);
                    writeln!(out, "  {mark} {name:<26} {}, {}{size}", what(other), other.repo)?;
                }
            }
            None => writeln!(out, "{} is the repository {}", self.name, self.name.repo())?,
        }
        match &self.found {
            Ok(found) => writeln!(out, "  files       {}", found.model.display())?,
            Err(why) => writeln!(out, "  files       {why}")?,
        }
        match &self.choice {
            Ok(choice) => {
                writeln!(out, "  backend     {}", choice.backend)?;
                for reason in &choice.reasons {
                    writeln!(out, "              {reason}")?;
                }
            }
            Err(why) => writeln!(out, "  backend     none: {why}")?,
        }
        match &self.plan {
            Some(Ok(plan)) => {
                for why in &plan.passed_over {
                    writeln!(out, "              passed over {why}")?;
                }
                writeln!(out, "  device      {} ({})", plan.device.id, plan.device.name)?;
                writeln!(out, "  memory      {}", plan.memory)?;
                match plan.shortage() {
                    Some(why) => writeln!(out, "              does not fit: {why}"),
                    None => writeln!(out, "              fits, with a context of {}", plan.context),
                }
            }
            Some(Err(e)) => writeln!(out, "  memory      {e}"),
            None => Ok(()),
        }
    }

    fn as_json(&self) -> Value {
        let model = self.known.map(|(entry, variant)| {
            let variants: Vec<Value> = entry
                .variants
                .iter()
                .map(|v| {
                    json!({
                        "name": entry.name_of(v), "repo": v.repo, "format": format_of(v),
                        "recipe": v.recipe, "weights_in_memory": v.recipe_in_memory(),
                        "download_bytes": entry.download_bytes(v),
                    })
                })
                .collect();
            json!({
                "title": entry.title, "parameters": entry.params, "input": entry.input,
                "licence": entry.licence.name(), "gated": entry.gated, "variant": variant.name,
                "drafter": entry.drafter().map(|v| entry.name_of(v)), "variants": variants,
            })
        });
        let plan = self.plan.as_ref().and_then(|plan| plan.as_ref().ok()).map(|plan| {
            json!({
                "device": plan.device.id.to_string(), "fits": plan.fits(),
                "shortage": plan.shortage(), "context": plan.context,
                "weights_bytes": plan.memory.weights, "kv_bytes": plan.memory.kv,
                "passed_over": plan.passed_over,
            })
        });
        json!({
            "name": self.name.to_string(),
            "repo": self.name.repo(),
            "revision": self.name.revision(),
            "model": model,
            "path": self.found.as_ref().ok().map(|found| &found.model),
            "absent": self.found.as_ref().err(),
            "backend": self.choice.as_ref().ok().map(|choice| &choice.backend),
            "reasons": match &self.choice {
                Ok(choice) => choice.reasons.clone(),
                Err(why) => vec![why.clone()],
            },
            "plan": plan,
        })
    }
}

/// Which numbers the weights are, and how they come to be so.
fn what(variant: &Variant) -> String {
    let as_published = match (variant.format, variant.recipe_in_memory()) {
        (Format::Gguf, Some(stored)) => format!("{stored} as published in GGUF"),
        (Format::Gguf, None) => "as published in GGUF".into(),
        (Format::Safetensors, _) => "bf16 as published".into(),
    };
    match &variant.recipe {
        Some(recipe) => format!("{recipe}, quantised here from bf16"),
        None => as_published,
    }
}

fn format_of(variant: &Variant) -> &'static str {
    match variant.format {
        Format::Safetensors => "safetensors",
        Format::Gguf => "gguf",
    }
}
