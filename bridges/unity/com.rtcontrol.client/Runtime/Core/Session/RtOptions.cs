using System;
using System.Collections.Generic;

namespace RtControl
{
    /// <summary>What a client asks for when it connects. What is null is left to the server.</summary>
    public sealed class RtOptions
    {
        /// <summary>
        /// <c>tcp://HOST:PORT</c> of `--bind`. Or <c>http://HOST:PORT/connect</c>, which names one of several servers: of
        /// this machine, since this client has no keys.
        /// </summary>
        public string Endpoint = "tcp://127.0.0.1:5555";

        /// <summary>For the server's logs.</summary>
        public string Name = "com.rtcontrol.client";

        /// <summary>The server's agent of this name; or own <see cref="Tools"/>; neither: the server's.</summary>
        public string Agent;

        /// <summary>OpenAI-style function definitions, such as those of <see cref="RtToolSet.Definitions"/>.</summary>
        public List<object> Tools;

        public string Instruction;
        public string Model;

        /// <summary>
        /// What to do whenever no call may be in force, one for each actuator. None: the server's, else stop in your own way.
        /// </summary>
        public IList<RtCall> SafeCalls = new RtCall[0];

        /// <summary>Ticks a second.</summary>
        public double? Hz;

        /// <summary><c>server</c>: real time; <c>client</c>: one call for each observation.</summary>
        public string Pacing = "server";

        public double? DeadlineMs;

        /// <summary>How old, from its observation's stamp, a call may be. 0: no limit.</summary>
        public double? TtlMs;

        public double? MaxAgeMs;

        /// <summary><c>hold</c> or <c>safe</c>.</summary>
        public string OnMiss;

        public double? HoldMs;

        /// <summary>An exclusive name: a second live session with it is refused.</summary>
        public string Robot;

        /// <summary>Greet anew, for a new session, also after the server's bye.</summary>
        public bool Persist;

        /// <summary>Tell what became of each call; the model's history then holds only executed ones.</summary>
        public bool Acknowledge = true;

        /// <summary>Makes a connection; tests replace it.</summary>
        internal Func<string, TcpTransport> Transport = endpoint => new ZmtpTransport(endpoint);

        internal RtMap Hello(long nowNs, string resume, string instruction)
        {
            var hello = new RtMap
            {
                { "type", "hello" },
                { "protocol", new List<object> { (long)Messages.Major, (long)Messages.Minor } },
                { "client", new RtMap { { "name", Cut(Blank(Name) ?? "com.rtcontrol.client") }, { "version", RtClient.Version }, { "language", "csharp" } } },
                { "t_client_ns", nowNs },
            };
            if (Acknowledge) hello["capabilities"] = new List<object> { "executed" };
            return hello.With("agent", Blank(Agent)).With("tools", Tools).With("instruction", instruction)
                .With("model", Blank(Model)).With("safe_call", SafeCalls.Count == 0 ? null : SafeCalls[0].ToMap())
                .With("safe_calls", SafeCalls.Count == 0 ? null : RtCall.Maps(SafeCalls))
                .With("pacing", Pacing).With("hz", Hz).With("deadline_ms", DeadlineMs).With("ttl_ms", TtlMs)
                .With("max_age_ms", MaxAgeMs).With("on_miss", Blank(OnMiss)).With("hold_ms", HoldMs)
                .With("robot", Blank(Robot)).With("resume", resume);
        }

        /// <summary>Throws WireException naming the field that is wrong, in a hello with this instruction.</summary>
        internal void Check(string instruction)
        {
            if (Agent != null && Agent.Length > 0 && Tools != null)
                throw new WireException(WireException.Invalid, "agent", "give an agent or tools, not both");
            // Through the wire and back: what the server would refuse is told here, before anything is connected.
            Codec.Decode(Codec.Encode(Hello(long.MaxValue, Codec.WidestToken, Blank(instruction))));
        }

        // A product's name may be longer than the server's logs want it.
        private static string Cut(string name)
        {
            const int most = 64;
            return name.Length <= most ? name : name.Substring(0, char.IsHighSurrogate(name[most - 1]) ? most - 1 : most);
        }

        internal static string Blank(string text)
        {
            return string.IsNullOrEmpty(text) ? null : text;
        }
    }
}
