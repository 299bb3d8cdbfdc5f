CREATE TABLE IF NOT EXISTS edgeloop_rows (
    space TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    version TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (space, key)
);
INSERT INTO edgeloop_rows VALUES ('models/faces', 'done-0', 'e78875b34addb12a', '{"name":"done-0","status":"complete","mean":0.001,"macs":1099511627776}');
INSERT INTO edgeloop_rows VALUES ('models/faces', 'done-1', '53fe357d67907f06', '{"name":"done-1","status":"complete","mean":0.002,"macs":1099511627777}');
INSERT INTO edgeloop_rows VALUES ('models/faces', 'done-2', 'cd9cf43ca9908abd', '{"name":"done-2","status":"complete","mean":0.003,"macs":1099511627778}');
INSERT INTO edgeloop_rows VALUES ('models/faces', 'held', 'a3d528a9fef8c9e0', '{"name":"held","status":"running f1_onnx","model_date":"2026-11-05T10:00:00+00:00","stages":"{\"f1_onnx\": {\"token\": \"f04d27e88c9e4f2fa31edaec69f8b9a1\", \"owner\": \"old-runner\", \"expires\": 1800000120.0, \"since\": 1800000000.0, \"attempts\": 1}, \"convert\": {\"committed\": [\"d814849ba6374b209ff0dd0c30323c6a\"], \"files\": {\"model.dlc\": \".attempts/x/model.dlc\"}}}","node":"old-runner","since":"2027-01-15T08:00:00+00:00","quantized":true,"macs":5,"params":7,"shape":"[1]","output_shape":"[1]"}');
INSERT INTO edgeloop_rows VALUES ('models/faces', 'odd', '2da22145cc97cec4', '{"name":"odd","status":"complete","val_iou":{"float":"nan"},"training_time":{"float":"inf"},"quantized":true,"notes":"Umlaut ä, 漢字 and \"quotes\""}');
INSERT INTO edgeloop_rows VALUES ('models/faces', 'waiting', '4a02f31d6a519485', '{"name":"waiting","status":"new","model_date":"2026-11-08T10:00:00+00:00"}');
INSERT INTO edgeloop_rows VALUES ('models/second', 'only', '1ae8552c7ba107ee', '{"name":"only","status":"new"}');
INSERT INTO edgeloop_rows VALUES ('queue/faces', 'device|00000030.000|2026-11-05T10:00:00|held|benchmark', '4225ea8e55d8abdd', '{"model":"held","stage":"benchmark","until":0.0}');
INSERT INTO edgeloop_rows VALUES ('queue/faces', 'onnx|00000060.000|2026-11-05T10:00:00|held|f1_onnx', 'e416a4d2c34b3f4a', '{"model":"held","stage":"f1_onnx","until":1800000010.0}');
INSERT INTO edgeloop_rows VALUES ('queue/faces', 'onnx|00000060.000|2026-11-08T10:00:00|waiting|f1_onnx', '2913c883b7f4159c', '{"model":"waiting","stage":"f1_onnx","until":0.0}');
INSERT INTO edgeloop_rows VALUES ('queue/faces', 'quantize|00000020.000|2026-11-08T10:00:00|waiting|convert', '7d0829923fb6cb08', '{"model":"waiting","stage":"convert","until":0.0}');
INSERT INTO edgeloop_rows VALUES ('usage', '2026-11-01|dev', '2e196aabaa91ec55', '{"device":"dev","seconds":12.5}');
