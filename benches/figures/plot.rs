//! Plots, as SVG files.

use std::ops::Range;
use std::path::Path;

use plotters::prelude::*;

/// A chart with two logarithmic axes.
pub struct Chart {
    pub title: &'static str,
    pub x: &'static str,
    pub y: &'static str,
    pub lines: Vec<Line>,
}

/// A line of a chart.
pub struct Line {
    pub name: &'static str,
    pub points: Vec<(f64, f64)>,
}

const SIZE: (u32, u32) = (800, 480);
const COLOURS: [RGBColor; 5] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x94, 0x67, 0xbd),
];

impl Chart {
    /// Writes the chart to a file.
    pub fn draw(&self, path: &Path) {
        let root = SVGBackend::new(path, SIZE).into_drawing_area();
        root.fill(&WHITE).unwrap();
        let points = || self.lines.iter().flat_map(|line| line.points.iter().copied());
        let (xs, ys) = (range(points().map(|point| point.0), 1.0), range(points().map(|point| point.1), 2.0));
        let mut chart = ChartBuilder::on(&root)
            .caption(self.title, ("sans-serif", 20))
            .margin(12)
            .margin_right(40)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(xs.log_scale().base(4.0), ys.log_scale())
            .unwrap();
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&|value| binary(*value))
            .y_label_formatter(&|value| value.to_string())
            .light_line_style(TRANSPARENT)
            .draw()
            .unwrap();
        for (line, colour) in self.lines.iter().zip(COLOURS.iter().cycle()) {
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(line.points.iter().copied(), style).point_size(3))
                .unwrap()
                .label(line.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.9))
            .border_style(BLACK.mix(0.3))
            .draw()
            .unwrap();
        root.present().unwrap();
    }
}

/// All values, and some room.
fn range(values: impl Iterator<Item = f64> + Clone, room: f64) -> Range<f64> {
    let least = values.clone().fold(f64::INFINITY, f64::min);
    least / room..values.fold(0.0, f64::max) * room
}

/// A number with as many of the binary prefixes as it takes.
fn binary(value: f64) -> String {
    match value {
        1_048_576.0.. => format!("{} Mi", value / 1_048_576.0),
        1024.0.. => format!("{} Ki", value / 1024.0),
        _ => value.to_string(),
    }
}
