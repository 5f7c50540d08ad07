// Conversations in IndexedDB: one record for each conversation, message and file.

import type { Node } from "./tree.ts";
import type { Conversation } from "./types.ts";

const NAME = "lapidary";
const VERSION = 1;

export interface StoredFile {
  id: string;
  conversation: string;
  blob: Blob;
}

let opened: Promise<IDBDatabase> | undefined;

function open(): Promise<IDBDatabase> {
  opened ??= new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, VERSION);
    asked.onupgradeneeded = () => {
      const db = asked.result;
      db.createObjectStore("conversations", { keyPath: "id" });
      for (const name of ["nodes", "files"]) {
        db.createObjectStore(name, { keyPath: "id" }).createIndex("conversation", "conversation");
      }
    };
    asked.onsuccess = () => {
      const db = asked.result;
      // A newer page in another tab needs the database for itself.
      db.onversionchange = () => {
        db.close();
        opened = undefined;
      };
      resolve(db);
    };
    asked.onerror = () => reject(asked.error ?? new Error("the browser's storage can't be opened"));
    asked.onblocked = () => reject(new Error("another tab holds an older version of the storage"));
  });
  opened.catch(() => (opened = undefined));
  return opened;
}

type Name = "conversations" | "nodes" | "files";

/** Runs `body` in one transaction; ends when its changes are kept. */
async function change(names: Name[], body: (tx: IDBTransaction) => void): Promise<void> {
  const db = await open();
  return new Promise((resolve, reject) => {
    const tx = db.transaction(names, "readwrite");
    tx.oncomplete = () => resolve();
    tx.onabort = () => reject(tx.error ?? new Error("the browser kept nothing"));
    body(tx);
  });
}

/** As `change`, for bodies that wait for nothing: kept even if the page is closed the next moment. */
const put = (names: Name[], body: (tx: IDBTransaction) => void): Promise<void> =>
  change(names, (tx) => {
    body(tx);
    tx.commit();
  });

async function read<T>(name: Name, body: (store: IDBObjectStore) => IDBRequest<T>): Promise<T> {
  const db = await open();
  return new Promise((resolve, reject) => {
    const asked = body(db.transaction(name, "readonly").objectStore(name));
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error ?? new Error("the browser's storage can't be read"));
  });
}

/** Proxies of the framework can't be stored, and Maps need not be: plain copies are. */
const plain = <T>(value: T): T => JSON.parse(JSON.stringify(value)) as T;

export const listConversations = (): Promise<Conversation[]> =>
  read("conversations", (store) => store.getAll() as IDBRequest<Conversation[]>);

export const nodesOf = (conversation: string): Promise<Node[]> =>
  read("nodes", (store) => store.index("conversation").getAll(conversation) as IDBRequest<Node[]>);

export const filesOf = (conversation: string): Promise<StoredFile[]> =>
  read("files", (store) => store.index("conversation").getAll(conversation) as IDBRequest<StoredFile[]>);

export const file = (id: string): Promise<StoredFile | undefined> =>
  read("files", (store) => store.get(id) as IDBRequest<StoredFile | undefined>);

/** Keeps a conversation's record, and messages and files if given, all or none. */
export const save = (conversation: Conversation, nodes: Node[] = [], files: StoredFile[] = []): Promise<void> =>
  put(["conversations", "nodes", "files"], (tx) => {
    tx.objectStore("conversations").put(plain(conversation));
    for (const node of nodes) tx.objectStore("nodes").put(plain(node));
    for (const item of files) tx.objectStore("files").put(item);
  });

/** Removes messages and the files that only they showed. */
export const removeNodes = (conversation: Conversation, nodes: string[], files: string[]): Promise<void> =>
  put(["conversations", "nodes", "files"], (tx) => {
    tx.objectStore("conversations").put(plain(conversation));
    for (const id of nodes) tx.objectStore("nodes").delete(id);
    for (const id of files) tx.objectStore("files").delete(id);
  });

export const removeConversation = (id: string): Promise<void> =>
  change(["conversations", "nodes", "files"], (tx) => {
    tx.objectStore("conversations").delete(id);
    for (const name of ["nodes", "files"]) {
      const asked = tx.objectStore(name).index("conversation").openKeyCursor(id);
      asked.onsuccess = () => {
        const cursor = asked.result;
        if (!cursor) return;
        tx.objectStore(name).delete(cursor.primaryKey);
        cursor.continue();
      };
    }
  });

export const removeAll = (): Promise<void> =>
  put(["conversations", "nodes", "files"], (tx) => {
    for (const name of ["conversations", "nodes", "files"]) tx.objectStore(name).clear();
  });
