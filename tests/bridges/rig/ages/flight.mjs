// A client that notes how old each call's observation is when the call is carried out, in ms: in Node and in a page.
export function flight(connect, url, timed, more) {
  const drive = { type: "object", properties: { speed: { type: "integer", minimum: -20, maximum: 20, multipleOf: 10 } }, required: ["speed"] };
  const tools = [
    { name: "drive", description: "Drive at a speed.", parameters: drive },
    { name: "stop", description: "Stand still.", parameters: { type: "object", properties: {} } },
  ];
  const ages = [];
  const client = connect(url, {
    tools, instruction: "Follow the road.", safeCall: { name: "stop", arguments: {} }, hz: 16, ...more,
    ...(timed ? {} : { observeHz: 16 }), observe: () => "left 40 right 10",
    onCall: (call, message) => {
      if (message?.status === "fresh") ages.push(performance.now() - message.t_obs_ns / 1e6);
    },
  });
  return { ages, client };
}
