// A page without Unity: links a .jslib as a WebGL build does, over a heap of its own, and lets a program call its functions
// over TCP: one JSON line a call, one a result.
//     node --experimental-websocket host.mjs FILE.jslib
import { createServer } from 'node:net';
import { createInterface } from 'node:readline';
import { readFileSync } from 'node:fs';

const heap = new Uint8Array(1 << 22);
const decoder = new TextDecoder();
const encoder = new TextEncoder();
// What the runtime of a WebGL build has; nothing else is there for the library's functions.
const runtime = {
  HEAPU8: heap,
  UTF8ToString(at, most = heap.length - at) {
    const end = heap.subarray(at, at + most).indexOf(0);
    return decoder.decode(heap.subarray(at, at + (end < 0 ? most : end)));
  },
  lengthBytesUTF8: (text) => encoder.encode(text).length,
  stringToUTF8(text, at, size) {
    const bytes = encoder.encode(text).subarray(0, Math.max(0, size - 1));
    heap.set(bytes, at);
    heap[at + bytes.length] = 0;
    return bytes.length;
  },
  WebSocket: globalThis.WebSocket,
};

const LibraryManager = { library: {} };
const autoAddDeps = (library, name) => { if (!(name in library)) throw new Error(`${name} is not in the library`); };
const mergeInto = (all, library) => Object.assign(all, library);
new Function('LibraryManager', 'autoAddDeps', 'mergeInto', readFileSync(process.argv[2], 'utf8'))(LibraryManager, autoAddDeps, mergeInto);

// A build takes the functions' texts: what the file's own scope had is gone, and `$name` is a global `name`.
const names = Object.keys(runtime);
const globals = Object.entries(LibraryManager.library).filter(([name]) => name[0] === '$');
const text = (value) => (typeof value === 'function' ? value.toString() : JSON.stringify(value));
const source = [
  '"use strict";',
  ...globals.map(([name, value]) => `var ${name.slice(1)} = ${text(value)};`),
  `return { ${Object.entries(LibraryManager.library).filter(([name]) => name[0] !== '$').map(([name, value]) => `${name}: ${text(value)}`).join(', ')} };`,
].join('\n');
const functions = new Function(...names, source)(...Object.values(runtime));

// Strings and buffers are written into the heap, as the marshaller does; buffers come back as they are after the call.
function call({ name, args }) {
  let at = 16;
  const places = args.map((value) => {
    if (typeof value === 'number') return value;
    const place = at;
    const bytes = value.text === undefined ? Buffer.from(value.bytes, 'base64') : Buffer.from(`${value.text}\0`);
    heap.set(bytes, place);
    at += bytes.length + 16;
    return place;
  });
  const result = functions[name](...places);
  const buffers = args.map((value, i) => (value.bytes === undefined ? null
    : Buffer.from(heap.subarray(places[i], places[i] + Buffer.from(value.bytes, 'base64').length)).toString('base64')));
  return { result: result ?? null, buffer: buffers.find((b) => b !== null) ?? null };
}

const server = createServer((peer) => {
  peer.setNoDelay(true);
  peer.on('error', () => {});
  createInterface({ input: peer }).on('line', (line) => peer.write(`${JSON.stringify(call(JSON.parse(line)))}\n`));
});
// As long as the test that started it.
process.stdin.on('end', () => process.exit()).resume();
server.listen(0, '127.0.0.1', () => console.log(JSON.stringify({ port: server.address().port, functions: Object.keys(functions) })));
