using System;
using System.Collections.Generic;
using System.Globalization;

namespace RtControl.Driver
{
    /// <summary>Answers requests about the pure parts of the package, one per line, as JSON for the tests to compare.</summary>
    internal sealed class Filter
    {
        private ClockOffset _offset = new ClockOffset();
        private readonly ToolBox _box = new ToolBox();
        private RtToolSet _tools;
        private Conversation _talk;
        private PhaseLock _phase;
        private long _periodNs;

        public void Run()
        {
            string line;
            while ((line = Console.ReadLine()) != null)
            {
                string answer;
                try
                {
                    answer = Json.Text(Answer(line.Split(' ')));
                }
                catch (WireException error)
                {
                    answer = Json.Text(new RtMap { { "code", error.Code }, { "field", error.Field } });
                }
                catch (RtToolException error)
                {
                    answer = Json.Text(new RtMap { { "wrong", error.Message } });
                }
                catch (RtRefusedException error)
                {
                    answer = Json.Text(new RtMap { { "refused", error.Message } });
                }
                Console.WriteLine(answer);
            }
        }

        private object Answer(string[] words)
        {
            switch (words[0])
            {
                case "decode":
                    return new RtMap { { "message", Codec.Decode(Parts(words)) } };
                case "again":
                    var parts = new List<object>();
                    foreach (byte[] part in Codec.Encode(Codec.Decode(Parts(words)))) parts.Add(part);
                    return parts;
                case "age":
                    return InForce.IsExpired(Long(words[1]), Number(words[2]), Long(words[3])) ? "expire" : "execute";
                case "connect":
                    var given = (RtMap)MsgPackReader.Unpack(Hex.Bytes(words[1]));
                    ConnectAnswer found = ConnectAnswer.Read(given.Text("url"), (int)given.Long("status"), given.Text("retry_after"), given.Text("body"));
                    return new RtMap { { "address", found.Address }, { "retry_s", found.RetryS }, { "why", found.Why } };
                case "clock":
                    _offset = new ClockOffset();
                    return null;
                case "sample":
                    _offset.Add(Long(words[1]), Long(words[2]), Long(words[3]), Long(words[4]));
                    return _offset.Known ? new RtMap { { "offset_ns", _offset.OffsetNs }, { "rtt_ns", _offset.RttNs } } : null;
                case "slept":
                    var sleep = new SleepCounter();
                    var times = new List<object>();
                    for (var i = 1; i < words.Length; i += 2) times.Add(sleep.Add(Long(words[i]), Long(words[i + 1])));
                    return times;
                case "phase":
                    _phase = new PhaseLock();
                    _offset = new ClockOffset();
                    _periodNs = Long(words[1]);
                    return null;
                case "next":
                    return _phase.Next(Long(words[2]), _periodNs, _offset, Long(words[1]));
                case "observed":
                    _phase.Observed(Long(words[1]), _periodNs, Long(words[2]));
                    return null;
                case "heard":
                    _phase.Heard((RtMap)MsgPackReader.Unpack(Hex.Bytes(words[2])), _periodNs, Long(words[1]));
                    return null;
                case "talk":
                    _talk = new Conversation((RtMap)MsgPackReader.Unpack(Hex.Bytes(words[1])));
                    return null;
                case "on":
                    return _talk.Answer(words[1], Long(words[2]), words.Length > 3 ? words[3] : null);
                case "made":
                    var names = new List<object>();
                    foreach (object one in new RtToolSet(Mistakes.Make(words[1])).Definitions)
                        names.Add(((RtMap)one).Map("function").Text("name"));
                    return names;
                case "safe":
                    var lone = new Loner();
                    var act = new RtAct { Kind = RtForce.Safe, Call = new RtCall(words[1]) };
                    try
                    {
                        new RtToolSet(lone).Execute(act);
                    }
                    catch (RtRefusedException)
                    {
                        return lone.Log;
                    }
                    return null;
                case "tools":
                    _tools = new RtToolSet(_box);
                    return new RtMap { { "tools", _tools.Definitions }, { "safe", _tools.SafeCalls[0].Name } };
                case "invoke":
                    string result = _tools.Invoke(Call(words[1]));
                    return new RtMap { { "result", result }, { "log", _box.Log } };
                default:
                    throw new ArgumentException(words[0]);
            }
        }

        private static List<byte[]> Parts(string[] words)
        {
            var parts = new List<byte[]>();
            for (var i = 1; i < words.Length; i++) parts.Add(Hex.Bytes(words[i]));
            return parts;
        }

        private static RtCall Call(string hex)
        {
            var map = (RtMap)MsgPackReader.Unpack(Hex.Bytes(hex));
            return map == null ? null : new RtCall(map.Text("name"), map.Map("arguments"));
        }

        private static long Long(string word)
        {
            return long.Parse(word, CultureInfo.InvariantCulture);
        }

        private static double Number(string word)
        {
            return double.Parse(word, CultureInfo.InvariantCulture);
        }
    }
}
