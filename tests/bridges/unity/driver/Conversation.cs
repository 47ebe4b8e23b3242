using System.Collections.Generic;

namespace RtControl.Driver
{
    /// <summary>The client's side of the conversation without a socket or a clock, one event a command.</summary>
    internal sealed class Conversation
    {
        private readonly Talk _talk;
        private List<RtMap> _due = new List<RtMap>();

        public Conversation(string name)
        {
            var tools = new RtToolSet(new Crane());
            _talk = new Talk(new RtOptions { Name = name, Tools = tools.Definitions, SafeCalls = tools.SafeCalls, Instruction = "Go." });
        }

        public object Answer(string what, long nowNs, string more)
        {
            if (what == "connected") _talk.Connected(nowNs);
            if (what == "hear") _talk.Hear(Codec.Decode(new[] { Hex.Bytes(more) }), nowNs);
            if (what == "observe") _talk.Observe(new RtMap { { "text", "left 40" } }, nowNs);
            if (what == "reset") _talk.Reset(null);
            if (what == "lost") _talk.Lost();
            if (what == "unsaid") _talk.Unsaid(_due, nowNs);
            if (what == "clock") _talk.Offset.Look(nowNs);
            if (what == "return") _talk.Acknowledge(_talk.TakeAct(), "executed", more == "lone" ? "\ud800" : more, null);
            if (what == "due") return Due(nowNs);
            if (what == "next") return _talk.NextObservationNs(long.Parse(more), nowNs);
            if (what == "pending") return _talk.Pending == null ? null : RtCall.Maps(_talk.Pending.Calls);
            return new RtMap
            {
                { "open", _talk.Open }, { "silent", _talk.Silent(nowNs) }, { "wait_ns", _talk.WakeNs() - nowNs },
                { "clock", _talk.Offset.Known ? (object)_talk.Offset.OffsetNs : null },
            };
        }

        private List<object> Due(long nowNs)
        {
            _due = _talk.Due(nowNs);
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
