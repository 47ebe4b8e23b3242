using System.Collections.Generic;
using System.Threading;

namespace RtControl.Driver
{
    /// <summary>
    /// `frozen`: the link's thread stands still once it has heard a call, so that nobody but Pump can see that it has run
    /// out. Tells what Pump carried out.
    /// </summary>
    internal sealed class Frozen : IRtTransport
    {
        private readonly Queue<List<byte[]>> _inbox = new Queue<List<byte[]>>();
        private readonly ManualResetEvent _thaw = new ManualResetEvent(false);
        private bool _stands;

        public RtTransportState State { get { return RtTransportState.Up; } }
        public bool Json { get { return false; } }
        public string Trouble { get { return "none"; } }

        public static int Run(string welcome)
        {
            var transport = new Frozen();
            transport.Give(Codec.Decode(new[] { Hex.Bytes(welcome) }));
            var tools = new RtToolSet(new Rover());
            var acts = new List<object>();
            var options = new RtOptions { Tools = tools.Definitions, SafeCalls = tools.SafeCalls, Instruction = "Go.", Transport = _ => transport };
            var client = new RtClient(options, act =>
            {
                acts.Add(act.Kind + " " + act.Call.Name);
                return null;
            });
            SpinWait.SpinUntil(() => client.Connected);
            transport.Give(new RtMap
            {
                { "type", "call" }, { "session", client.Welcome.Message.Text("session") }, { "tick", 0 }, { "epoch", 0 },
                { "status", "fresh" }, { "t_obs_ns", MonotonicClock.NowNs }, { "ttl_ms", 50 }, { "deadline_ns", 0 }, { "t_server_ns", 0 },
                { "call", new RtMap { { "name", "steer" }, { "arguments", new RtMap { { "angle", 10 } } } } },
            }, true);
            SpinWait.SpinUntil(() => client.Counts.Fresh + client.Counts.Expired == 1);
            Thread.Sleep(60);
            client.Pump();
            Flight.Tell("acts", acts, "fresh", client.Counts.Fresh);
            transport._thaw.Set();
            client.Dispose();
            return 0;
        }

        private void Give(RtMap message, bool last = false)
        {
            lock (_inbox)
            {
                _stands = last;
                _inbox.Enqueue(Codec.Encode(message));
            }
        }

        public List<byte[]> Receive()
        {
            lock (_inbox) return _inbox.Count == 0 ? null : _inbox.Dequeue();
        }

        public bool Send(IList<byte[]> parts)
        {
            return true;
        }

        public void Wait(int milliseconds)
        {
            bool stands;
            lock (_inbox) stands = _stands && _inbox.Count == 0;
            if (stands) _thaw.WaitOne();
            else Thread.Sleep(1);
        }

        public void Wake()
        {
        }

        public void Close(int lingerMs)
        {
        }
    }
}
