import "./style.css";

import { mount } from "svelte";

import App from "./App.svelte";
import { startWorker } from "./lib/offline.ts";

const target = document.getElementById("app");
if (target) mount(App, { target });
startWorker();
