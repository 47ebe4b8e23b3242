using System.Collections.Generic;
using System.Threading;

namespace RtControl.Driver
{
    /// <summary>
    /// `frozen --endpoint ENDPOINT`: the link's thread stops after it has received a call, so that Pump alone can see
    /// that the call has run out. Prints what Pump carried out.
    /// </summary>
    internal sealed class Frozen : ZmtpTransport
    {
        private readonly ManualResetEvent _thaw = new ManualResetEvent(false);
        private RtClient _client;

        private Frozen(string endpoint) : base(endpoint)
        {
        }

        public static int Run(Dictionary<string, string> given)
        {
            var transport = new Frozen(given["endpoint"]);
            var tools = new RtToolSet(new Rover());
            var acts = new List<object>();
            var options = new RtOptions
            {
                Tools = tools.Definitions, SafeCalls = tools.SafeCalls, Instruction = "Go.", Transport = _ => transport,
            };
            transport._client = new RtClient(options, act =>
            {
                acts.Add(act.Kind + " " + act.Call.Name);
                return null;
            });
            SpinWait.SpinUntil(() => transport._client.Connected);
            transport._client.Observe("left 40 right 10");
            SpinWait.SpinUntil(() => transport._client.Counts.Fresh + transport._client.Counts.Expired == 1);
            Thread.Sleep(300);
            transport._client.Pump();
            Flight.Tell("acts", acts, "fresh", transport._client.Counts.Fresh);
            transport._thaw.Set();
            transport._client.Dispose();
            return 0;
        }

        public override void Wait(int milliseconds)
        {
            if (_client != null && _client.Counts.Fresh > 0) _thaw.WaitOne();
            else base.Wait(milliseconds);
        }
    }
}
