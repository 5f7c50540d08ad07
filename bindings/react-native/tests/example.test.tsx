import { fireEvent, render, screen, waitFor } from '@testing-library/react-native';

import { App } from '../example/src/App';
import { native } from './help';
import { models } from '../src';

// Of the app on a phone alone; not installed here.
jest.mock('react-native-image-picker', () => ({ launchImageLibrary: async () => ({}) }), { virtual: true });

const LONG = { timeout: 100_000 };

it('the example shows the plan, loads, answers and unloads', async () => {
  const gone = { source: '/no/such/model.gguf', title: 'gone' };
  await render(<App models={[models.llm.pebble, gone]} host={native()} />);
  await screen.findByText(/MB on cpu/, {}, LONG);
  await fireEvent.press(screen.getByText('Load'));
  const input = await screen.findByLabelText('message', {}, LONG);
  await fireEvent.changeText(input, 'What is 4 + 7?');
  await fireEvent.press(screen.getByText('Send'));
  await screen.findByText(/11/, {}, LONG);
  await waitFor(() => expect(screen.getByTestId('stats')).toHaveTextContent(/tokens/), LONG);
  await fireEvent.press(screen.getByText('Unload'));
  await screen.findByText('Memory plan', {}, LONG);

  // What can't be loaded says why, and the next one loads.
  await fireEvent.press(screen.getByText('gone'));
  await screen.findByText(/not_found/, {}, LONG);
  await fireEvent.press(screen.getByText('pebble'));
  await screen.findByText(/MB on cpu/, {}, LONG);
});
