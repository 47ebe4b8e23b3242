using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>
    /// A client of an rtcontrol server. Nothing here blocks: a thread of its own holds the connection, and what begins
    /// to be in force is carried out by <see cref="Pump"/> in the thread that calls it (Unity: the main thread, each
    /// frame). A call that is older than its time-to-live is never carried out, however late Pump comes.
    /// </summary>
    public sealed class RtClient : IDisposable
    {
        public const string Version = "0.1.0";

        private readonly Link _link;
        private readonly Func<RtAct, string> _execute;

        /// <summary>
        /// Begins to connect, and returns at once. <paramref name="execute"/> carries out an act and may return a result
        /// in words; it throws <see cref="RtRefusedException"/> for what its own bounds forbid, anything else for a
        /// failure. Throws WireException naming the option that is wrong.
        /// </summary>
        public RtClient(RtOptions options, Func<RtAct, string> execute)
        {
            _execute = execute;
            _link = new Link(options);
        }

        /// <summary>Whether the session is live now.</summary>
        public bool Connected
        {
            get { lock (_link.Lock) return _link.Talk.Open; }
        }

        /// <summary>Why there is no connection, for people; null while there is one.</summary>
        public string Trouble
        {
            get { lock (_link.Lock) return _link.Trouble; }
        }

        /// <summary>Where the newest connection goes; of GET /connect, the server that was named.</summary>
        public string Address
        {
            get { return _link.Address; }
        }

        /// <summary>Why the session has ended for good; null while it has not. A lost connection does not end it.</summary>
        public string Ended
        {
            get { lock (_link.Lock) return _link.Talk.Ended; }
        }

        /// <summary>What the server put in force; null before the first welcome, the newest after a restart of the server.</summary>
        public RtWelcome Welcome
        {
            get { lock (_link.Lock) return _link.Talk.Welcome; }
        }

        /// <summary>The last refusal that the server told, or null.</summary>
        public string LastError
        {
            get { lock (_link.Lock) return _link.Talk.LastError; }
        }

        public RtCounts Counts
        {
            get { lock (_link.Lock) return _link.Talk.Counts; }
        }

        public long Epoch
        {
            get { lock (_link.Lock) return _link.Talk.Epoch; }
        }

        /// <summary>
        /// What is in force at this instant; nothing runs beyond its time-to-live here either. Failing: it should be safe.
        /// </summary>
        public RtForce InForce
        {
            get
            {
                lock (_link.Lock)
                {
                    _link.Talk.Look(MonotonicClock.NowNs);
                    return _link.Talk.Force;
                }
            }
        }

        /// <summary>The server's clock minus ours in ns, and half of the round trip that it was measured with; false: not known yet.</summary>
        public bool ServerClock(out long offsetNs, out long errorNs)
        {
            lock (_link.Lock)
            {
                _link.Talk.Offset.Look(MonotonicClock.NowNs);
                offsetNs = _link.Talk.Offset.OffsetNs;
                errorNs = _link.Talk.Offset.RttNs / 2;
                return _link.Talk.Offset.Known;
            }
        }

        /// <summary>
        /// When to look next, by MonotonicClock, so that the observation arrives just in time for the server's next tick: learnt
        /// from how long those before took. Observe in your first moment at or after it, then ask again. Null: not known
        /// (yet, or client-paced); observe once a period then.
        /// </summary>
        public long? NextLookNs()
        {
            lock (_link.Lock) return _link.Talk.NextLookNs(MonotonicClock.NowNs);
        }

        /// <summary>
        /// When to look next, so that the server's next tick decides upon what is fresh: <paramref name="leadNs"/> before it
        /// is released, by MonotonicClock. The lead is for the way, and for how late you look. Null: the ticks' phase is not
        /// known yet.
        /// </summary>
        public long? NextObservationNs(long leadNs)
        {
            lock (_link.Lock) return _link.Talk.NextObservationNs(leadNs, MonotonicClock.NowNs);
        }

        /// <summary>
        /// Sends one look at the world: what the model is to read. Returns its number. Newer ones replace those that
        /// could not be sent yet. <paramref name="stampNs"/>: when it was captured, by MonotonicClock (default: now).
        /// </summary>
        public long Observe(string text, long stampNs = -1)
        {
            return Observe(new RtMap { { "text", text } }, stampNs);
        }

        /// <summary>
        /// The same with any of `text`, `data` (RtMap) and `arrays` (a list of RtMap with name, dtype, shape, data).
        /// The bytes are copied. Throws WireException for what the protocol does not allow.
        /// </summary>
        public long Observe(RtMap content, long stampNs = -1)
        {
            long nowNs = MonotonicClock.NowNs;
            if (stampNs > nowNs) throw new WireException(WireException.Invalid, "t_ns", "an instant to come");
            if (stampNs < 0) stampNs = nowNs;
            var copy = new RtMap
            {
                { "type", "observe" }, { "session", Codec.WidestToken }, { "seq", Codec.WidestCount }, { "epoch", Codec.WidestCount }, { "t_ns", stampNs },
            };
            foreach (KeyValuePair<string, object> entry in content) copy.With(entry.Key, entry.Value);
            copy = Codec.Copy(copy);
            long seq;
            lock (_link.Lock) seq = _link.Talk.Observe(copy, stampNs);
            _link.Wake();
            return seq;
        }

        /// <summary>
        /// The goal in words, from the next tick on. Throws WireException for one that the protocol does not allow.
        /// </summary>
        public void Instruct(string instruction)
        {
            Checked(new RtMap { { "type", "instruct" } }.With("instruction", instruction));
            // The next hello has it too.
            _link.Talk.Options.Check(instruction);
            lock (_link.Lock) _link.Talk.Instruct(instruction);
            _link.Wake();
        }

        /// <summary>
        /// A new episode, whose world is at rest: nothing of the one before counts any more. <paramref name="ended"/>
        /// may tell how that one ended: seed, return, success, seconds. Returns the new epoch. Throws WireException.
        /// </summary>
        public long Reset(RtMap ended = null)
        {
            ended = Checked(new RtMap { { "type", "reset" }, { "epoch", Codec.WidestCount } }.With("ended", ended)).Map("ended");
            long epoch;
            lock (_link.Lock) epoch = _link.Talk.Reset(ended);
            _link.Wake();
            return epoch;
        }

        /// <summary>
        /// Carries out what began to be in force since the last time: one call, the newest, or all safe ones, in order. True:
        /// there was something. A safe call that fails is tried again with each Pump, until it does not, or something else is
        /// in force.
        /// After a call that was given to it and could not be carried out, the next one is safe: what was done before
        /// would else go on for as long as this call. Goes on working after Dispose, for the last act, which is safe.
        /// </summary>
        public bool Pump()
        {
            RtAct act;
            lock (_link.Lock)
            {
                // Only what is in force at this instant is carried out.
                _link.Talk.Look(MonotonicClock.NowNs);
                act = _link.Talk.TakeAct();
            }
            if (act == null) return false;
            string outcome = "executed", result = null, error = null;
            bool unfit = false;
            var failed = new List<RtCall>();
            foreach (RtCall call in act.Calls.Count > 0 ? act.Calls : new RtCall[1])
            {
                try
                {
                    result = _execute(act.Of(call)) ?? result;
                }
                catch (Exception fault)
                {
                    var refused = fault as RtRefusedException;
                    // What fits no tool will not fit it next time.
                    if (refused == null || !refused.Unfit) failed.Add(call);
                    unfit = unfit || refused == null || refused.Unfit;
                    bool several = act.Calls.Count > 1;
                    outcome = several || refused == null ? "failed" : "refused";
                    string why = refused == null ? fault.GetType().Name + ": " + fault.Message : fault.Message;
                    error = (error == null ? "" : error + "; ") + (several ? call.Name + ": " : "") + why;
                }
            }
            lock (_link.Lock)
            {
                if (outcome == "executed") _link.Talk.Counts.Executed++;
                else if (outcome == "refused") _link.Talk.Counts.Refused++;
                else _link.Talk.Counts.Failed++;
                LastFailure = error ?? LastFailure;
                _link.Talk.Acknowledge(act, outcome, result, error);
                if (unfit) _link.Talk.GiveUp(act, outcome);
                if (act.Kind == RtForce.Safe && failed.Count > 0) _link.Talk.Again(act, act.Calls.Count > 0 ? failed : act.Calls);
            }
            _link.Wake();
            return true;
        }

        /// <summary>Why an act was refused or failed last; null where none was.</summary>
        public string LastFailure { get; private set; }

        /// <summary>Says bye and lets go, in under 100 ms. Safe is in force then: Pump once more to carry it out.</summary>
        public void Dispose()
        {
            _link.Close();
            // Also where the thread is stuck: nothing of the server counts any more.
            lock (_link.Lock) _link.Talk.End("The client was closed.");
        }

        // What is wrong is told to the caller: in the link's thread nobody would hear of it.
        private RtMap Checked(RtMap message)
        {
            message = message.With("session", Codec.WidestToken);
            return Codec.Copy(message);
        }
    }

    /// <summary>
    /// Thrown by a tool for what its own bounds forbid. What was done before goes on then, unless the tool ends it.
    /// </summary>
    public sealed class RtRefusedException : Exception
    {
        public RtRefusedException(string why) : base(why)
        {
        }

        /// <summary>Whether the call fits no tool; then safe follows.</summary>
        public bool Unfit { get; private set; }

        /// <summary>A call that fits no tool, or has other arguments than the tool takes.</summary>
        public static RtRefusedException OfUnfit(string why)
        {
            return new RtRefusedException(why) { Unfit = true };
        }
    }
}
