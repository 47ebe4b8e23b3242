using System.Collections.Generic;

namespace RtControl.Driver
{
    /// <summary>The client's conversation core without socket or clock; each command is one event.</summary>
    internal sealed class Conversation
    {
        private readonly Talk _talk;
        private List<RtMap> _due = new List<RtMap>();
        private RtAct _taken;
        private string _cause;
        private long _nowNs = 1000000000L;

        public Conversation(RtMap given)
        {
            var options = new RtOptions
            {
                Name = given.Text("name"), Tools = given.List("tools"), SafeCalls = RtCall.Safe(given, "safe_calls", "safe_call"),
                Instruction = "Go.", Persist = given.Bool("persist"), TtlMs = given.Get("ttl_ms") == null ? (double?)null : given.Number("ttl_ms"),
            };
            _talk = new Talk(options, () => _nowNs) { Several = given.Bool("several") };
        }

        public object Answer(string what, long nowNs, string more)
        {
            _nowNs = nowNs;
            object given = more == null || what == "hear" ? null : MsgPackReader.Unpack(Hex.Bytes(more));
            if (what == "connected") _talk.Connected(nowNs);
            if (what == "hear") _talk.Hear(Codec.Decode(new[] { Hex.Bytes(more) }), nowNs);
            if (what == "look") _talk.Look(nowNs);
            if (what == "observe") _talk.Observe(new RtMap { { "text", given } }, nowNs);
            if (what == "instruct") _talk.Instruct((string)given);
            if (what == "reset") _talk.Reset((RtMap)given);
            if (what == "lost") _talk.Lost();
            if (what == "elsewhere") _talk.Elsewhere();
            if (what == "elsewhere") _talk.Forget();
            if (what == "unsaid") _talk.Unsaid(_due, nowNs);
            if (what == "clock") _talk.Offset.Look(nowNs);
            if (what == "take") _taken = _talk.TakeAct();
            if (what == "done") _talk.Acknowledge(_taken, (string)given, null, null);
            if (what == "done" && (string)given == "failed") _talk.GiveUp(_taken, "failed");
            if (what == "due") return Due(nowNs);
            RtAct next = _talk.Pending;
            if (next != null && next.Kind == RtForce.Safe) _cause = next.Cause;
            return new RtMap
            {
                { "open", _talk.Open }, { "gone", _talk.Silent(nowNs) || _talk.Leaves != null }, { "at_once", _talk.AtOnce },
                { "ended", _talk.Ended }, { "wake_ns", _talk.WakeNs() }, { "clock", _talk.Offset.Known ? (object)_talk.Offset.OffsetNs : null },
                { "in_force", _talk.Rule.Kind.ToString().ToLowerInvariant() }, { "calls", RtCall.Maps(_talk.Rule.Calls) }, { "cause", _cause },
                { "begins", next != null }, { "execute", next == null ? null : RtCall.Maps(next.Calls) },
            };
        }

        private List<object> Due(long nowNs)
        {
            _due = _talk.Due(nowNs);
            if (_due.Count > 0) _talk.Said(nowNs);
            var said = new List<object>();
            foreach (RtMap message in _due)
            {
                Codec.Encode(message);
                said.Add(message);
            }
            return said;
        }
    }
}
