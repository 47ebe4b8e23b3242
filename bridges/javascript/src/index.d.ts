// Types of the client of rtcontrol. Instants are nanoseconds of this side's own clock (`nowNs`), unless they say otherwise.

/** What JSON can say. */
export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

/** A call of one of the tools. */
export interface Call {
  name: string;
  arguments?: { [parameter: string]: Json };
}

/** What a server is shown: a text that the model reads, or a map. */
export type World = string | { [key: string]: Json | undefined };

/** A function definition as in the OpenAI API, with or without the wrapper. */
export interface Tool {
  name: string;
  description?: string;
  parameters?: { [key: string]: Json };
}
export interface WrappedTool {
  type: "function";
  function: Tool;
}

export type State = "connecting" | "opening" | "live" | "waiting" | "refused" | "closed";
export type Kind = "call" | "safe";
export type Status = "fresh" | "held" | "safe";

/** The server's answer to hello (docs/protocol.md, section 4). */
export interface Welcome {
  type: "welcome";
  protocol: number[];
  session: string;
  resumed: boolean;
  epoch: number;
  tools: { [key: string]: Json }[];
  instruction: string;
  model: string;
  model_trained_on_tools: boolean;
  trained?: boolean;
  agent?: string;
  safe_call?: Call;
  safe_calls?: Call[];
  pacing: "server" | "client";
  hz: number;
  period_ms: number;
  deadline_ms: number;
  ttl_ms: number;
  max_age_ms: number;
  hold_ms: number;
  heartbeat_ms: number;
  on_miss: "hold" | "safe";
  warnings?: string[];
}

/** What a tick sent. */
export interface CallMessage {
  type: "call";
  tick: number;
  epoch: number;
  status: Status;
  call?: Call;
  calls?: Call[];
  seq_obs?: number;
  t_obs_ns?: number;
  ttl_ms: number;
  confidence?: number;
  cause?: string;
  timing?: { age_ms?: number; decide_ms?: number; late_ms?: number };
}

/** One character's part of a crowd's calls. */
export type MemberCall = Omit<CallMessage, "type"> & { id: string };

export interface ErrorMessage {
  type: "error";
  code: string;
  message: string;
  remedy?: string;
  field?: string;
  retryable?: boolean;
  fatal?: boolean;
}

/** A WebSocket's constructor: the browser's, Node's, or that of the package ws. */
export type WebSocketConstructor = new (url: string, protocols?: string[]) => {
  readonly readyState: number;
  readonly bufferedAmount: number;
  send(text: string): void;
  close(): void;
};

export interface Options {
  /** One of the server's agents; or bring `tools` and an `instruction`. */
  agent?: string;
  tools?: (Tool | WrappedTool)[];
  instruction?: string;
  model?: string;
  /** What to do when no call is in force; several for several actuators. */
  safeCall?: Call | Call[];
  /** The access token, where the server requires one. */
  token?: string | null;
  pacing?: "server" | "client";
  hz?: number;
  deadlineMs?: number;
  ttlMs?: number;
  maxAgeMs?: number;
  onMiss?: "hold" | "safe";
  holdMs?: number;
  robot?: string;
  /** Greet again, for a new session, also after the server's bye (default: true). */
  persist?: boolean;
  /** Who this is, in the server's logs. */
  name?: string;
  WebSocket?: WebSocketConstructor;
  /** Looks at the world just in time for each of the server's ticks; null: nothing to see now. */
  observe?: () => World | null | undefined;
  /** So often instead. */
  observeHz?: number;
  /** Carry it out, until another one comes. Where it throws, the server is told, and safe follows. */
  onCall?: (call: Call, message: CallMessage | null) => void;
  /** A safe call; null: none is known, stop in your own way. Without this, safe calls go to `onCall`. Where it throws it is tried again. */
  onSafe?: (call: Call | null, message: CallMessage | null) => void;
  /** Each tick, with how long it took from the look at the world. */
  onTick?: (message: CallMessage, latencyMs: number | null) => void;
  onState?: (state: State, detail: string | { attempts: number; opened: boolean } | null) => void;
  onWelcome?: (welcome: Welcome) => void;
  /** An instruction is in force; `said` is what it was understood from. */
  onInstruct?: (instruction: string, said?: string) => void;
  onError?: (message: ErrorMessage) => void;
}

export interface InForceNow {
  status: Status;
  call: Call | null;
  calls: Call[];
  /** Why it is safe or held: `no_call_yet`, `expired`, `server_lost`, `session_ended`, `new_session`, `failed`, or a cause of the server's. */
  cause: string | null;
  /** Until its time-to-live ends; null where it has none. */
  endsInMs: number | null;
  message: CallMessage | null;
}

/** How an episode ended. */
export interface Ended {
  seed?: number;
  return?: number;
  success?: boolean;
  seconds?: number;
}

/** A session that looks after itself. */
export class Client {
  constructor(url: string, options?: Options);
  readonly ready: Promise<Welcome>;
  readonly state: State;
  readonly welcome: Welcome | null;
  /** Of the newest connection, without a query. */
  readonly address: string | null;
  readonly epoch: number;
  readonly clockOffset: { offsetMs: number; roundTripMs: number } | null;
  readonly waitedMs: number | null;
  set token(token: string | null);
  observe(world: World): boolean;
  nextLookMs(): number | null;
  inForce(): InForceNow;
  instruct(instruction: string): boolean;
  reset(ended?: Ended): boolean;
  close(reason?: string): void;
}

/** `url`: ws://HOST:PORT/ws. */
export function connect(url: string, options?: Options): Client;

/** The fields of a hello that are given as the protocol has them. */
export interface Hello {
  agent?: string;
  tools?: (Tool | WrappedTool)[];
  instruction?: string;
  safe_call?: Call;
  safe_calls?: Call[];
  hz?: number;
  ttl_ms?: number;
  capabilities?: string[];
  crowd?: { members?: number };
  [field: string]: unknown;
}

export interface SessionOptions {
  token?: string | null;
  persist?: boolean;
  WebSocketClass?: WebSocketConstructor;
}

export interface SessionHandlers {
  state?: (state: State, detail: string | { attempts: number; opened: boolean } | null) => void;
  welcome?: (welcome: Welcome) => void;
  call?: (message: CallMessage, latencyMs: number | null) => void;
  act?: (call: Call | null, kind: Kind) => void;
  instruct?: (instruction: string, said?: string) => void;
  error?: (message: ErrorMessage) => void;
}

/** A session for a loop that calls `look` at least every 50 ms by itself, as a page does with each frame. */
export class Session {
  constructor(url: string, hello: Hello, on?: SessionHandlers, options?: SessionOptions);
  token: string | null;
  readonly state: State;
  readonly welcome: Welcome | null;
  readonly address: string | null;
  readonly inForce: InForce;
  readonly clock: ClockOffset;
  readonly phase: PhaseLock;
  readonly hasRoom: boolean;
  open(): void;
  close(reason?: string): void;
  observe(world: World, tNs?: number): boolean;
  instruct(instruction: string): boolean;
  reset(ended?: Ended): boolean;
  look(tNs?: number): void;
  nextLookNs(tNs?: number): number | null;
  nextObservationNs(leadNs: number, tNs?: number): number | null;
}

/** What a member of a crowd brings of its own. */
export interface Terms {
  instruction?: string;
  hz?: number;
  deadline_ms?: number;
  ttl_ms?: number;
  priority?: number;
  every_tick?: boolean;
  safe_calls?: Call[];
}

export interface CrowdHandlers {
  state?: SessionHandlers["state"];
  welcome?: SessionHandlers["welcome"];
  instruct?: SessionHandlers["instruct"];
  error?: SessionHandlers["error"];
  act?: (id: string, call: Call | null, kind: Kind) => void;
  call?: (id: string, message: MemberCall, latencyMs: number | null) => void;
  refused?: (part: { id?: string; code: string; message: string; remedy?: string; seq?: number }) => void;
}

/** Many characters over one connection (docs/crowds.md). */
export class Crowd {
  constructor(url: string, hello: Hello, on?: CrowdHandlers, options?: SessionOptions);
  token: string | null;
  readonly state: State;
  readonly welcome: Welcome | null;
  readonly address: string | null;
  readonly members: ReadonlyMap<string, unknown>;
  readonly hasRoom: boolean;
  open(): void;
  close(reason?: string): void;
  join(id: string, terms?: Terms): void;
  leave(...ids: string[]): void;
  observe(looks: { [id: string]: World }, tNs?: number): boolean;
  instruct(instruction: string, ...ids: string[]): boolean;
  call(id: string, tNs?: number): { status: Status; calls: Call[]; cause: string | null; message: MemberCall | null };
  look(tNs?: number): void;
  statistics(): { members: number; observed: number; fresh: number; held: number; safe: number; expired: number; ignored: number; superseded: number; p50: number | null; p99: number | null };
}

/** What is in force: the rule of docs/protocol.md, section 7. */
export interface Step {
  act: Kind | null;
  calls: Call[];
  expired: boolean;
  tick: number | null;
}
export class InForce {
  constructor(epoch?: number, safe?: Call[], ownTtlMs?: number | null);
  readonly epoch: number;
  readonly kind: "none" | Kind;
  readonly cause: string | null;
  readonly calls: Call[];
  readonly safeCalls: Call[];
  readonly expiresNs: number | null;
  readonly lastTick: number;
  newSession(epoch: number, safe?: Call[]): Step;
  reset(epoch: number): void;
  receive(message: Omit<CallMessage, "type">, nowNs: number): Step;
  look(nowNs: number): Step;
  serverLost(): Step;
  serverLeft(cause?: string): Step;
}
export function expired(tObsNs: number | null | undefined, ttlMs: number, nowNs: number): boolean;
export function safeCalls(message: { calls?: Call[]; safe_calls?: Call[]; call?: Call; safe_call?: Call }): Call[];

/** When to look at the world (docs/protocol.md, section 6). */
export class PhaseLock {
  readonly waitedMs: number | null;
  forget(): void;
  next(releaseNs: number, periodNs: number, clock: Offset | null, nowNs: number): number | null;
  observed(seq: number, periodNs: number, nowNs: number): void;
  heard(call: object, periodNs: number, nowNs: number): void;
}
export interface Offset {
  offsetNs: number;
  rttNs: number;
}
export class ClockOffset {
  add(t0: number, t1: number, t2: number, t3: number): void;
  at(tNs: number): Offset | null;
}
export function nowNs(): number;

/** A message that is refused: `code` as in docs/protocol.md, `field` (a path) where one is to blame. */
export class WireError extends Error {
  readonly code: string;
  readonly field: string | null;
}
export const PROTOCOL: readonly [number, number];
export const LIMITS: { readonly [name: string]: number };
export function encode(message: object): string;
export function decode(text: string, limits?: typeof LIMITS): { type: string; [field: string]: unknown };
